"""The questions of the fingerprint: one command line each, asked in a folder of small files.

They cover every kind of answer and every way in. Files that a question needs are in
`files/`; none needs what another one wrote. Each is also asked for JSON, and for a page where
its command writes one.
"""

from __future__ import annotations

QUESTIONS: dict[str, str] = {
    "predict dlrm": "predict --topology dgx_h100.yaml",
    "predict dlrm isolated": (
        "predict --topology dgx1_v100 --workload dlrm_default --isolated --no-interference"
    ),
    "rank": (
        "rank --topology quad_a100 --tables tables.yaml --batch 8192 --samples 8 --plan-out "
        "ranked.json"
    ),
    "predict dlrm with a plan": (
        "predict --topology quad_a100 --tables tables.yaml --plan plan.json --set batch=8192 "
    ),
    "rank batches": (
        "rank --topology dgx_h100 --hosts 2 --workload dlrm_mlperf --sharder balanced "
        "--sharder torchrec --samples 4 --stack torchrec"
    ),
    "predict transformer": "predict --workload llama3_8b --topology dgx_h100 --hosts 2",
    "predict layout": (
        "predict --workload llama3_70b --topology dgx_a100 --hosts 8 --stack megatron --set "
        "parallel.tp=8 --set parallel.pp=4 --samples 8 --price 2.5"
    ),
    "predict experts": (
        "predict --workload qwen3_30b_a3b --topology gb200_nvl72 --ranks-per-host 16 --samples 4"
    ),
    "predict on Ray": (
        "predict --workload gpt2_124m --topology dgx_a100 --executor ray --workers 1 --samples 4"
    ),
    "predict trace": (
        "predict --workload transformer_small --topology dgx_a100 --ranks-per-host 2 "
        "--samples 4 --trace-out trace.json --ranks 0,1"
    ),
    "sweep": (
        "predict --topology dgx_a100 --workload dlrm_default --sweep batch=4096:16384:x2 "
        "--samples 4 --csv sweep.csv"
    ),
    "compare": "compare --topology dgx_a100,dgx_h100 --workload gpt2_124m --price 2",
    "search": (
        "search --workload transformer_small --topology hgx_a100_4gpu --set batch=64 --seconds 600"
    ),
    "import": "import traces --out imported",
    "predict recorded": "predict --job recorded",
    "predict recorded moved": ("predict --job recorded --topology dgx_h100 --was dgx_a100 --force"),
    "replay recorded": "replay recorded",
    "whatif recorded": "whatif recorded --apply scale:match=gemm,factor=0.5",
    "emulate": "emulate --ranks 2 --device h100_sxm --out emulated_again -- ddp.py",
    "predict emulated": "predict --job emulated --topology dgx_h100",
    "whatif emulated": (
        "whatif emulated --topology dgx_h100 --apply host_overhead --apply "
        "amp:topology=dgx_h100 --force"
    ),
    "predict built": "predict --job built --topology dgx_a100 --samples 4",
    "calibrate kernels": "calibrate kernels memory.csv --out memory.yaml",
    "calibrate collectives": ("calibrate collectives collectives.csv --out collectives.yaml"),
    "collective": ("collective --kind all_reduce --topology dgx_h100 --hosts 2 --size 64MiB"),
    "schema runs": "schema runs --json",
    "trace stats": "trace stats traces",
    "trace diff": "trace diff traces/rank0.json traces/rank1.json",
    "topology": "topology show dgx1_v100",
    "workload": "workload show llama3_8b",
    "kernel gemm": "kernel gemm --m 4096 --n 4096 --k 8192 --device h100_sxm",
    "kernel attention": (
        "kernel attention --length 4096 --heads 32 --backward --device a100_sxm_80gb"
    ),
    "validate runs transformer": "validate runs core_transformer.csv --executor serial",
    "validate runs dlrm": "validate runs core_dlrm.csv --executor serial",
    "validate collectives": "validate collectives collectives.csv",
    "validate gemm": "validate gemm gemm.csv",
}
"""Command lines by name, in the order they are asked."""

WITH_PAGE = ("predict", "compare", "rank", "search", "replay", "validate", "whatif")
"""Commands with `--report`."""
WITHOUT_JSON = ("emulate", "schema", "topology", "workload")
"""Commands without `--json FILE`."""
FILES_WRITTEN = {
    "emulate": "emulated_again/job.json",
    "predict trace": "trace.json",
    "rank": "ranked.json",
    "sweep": "sweep.csv",
    "calibrate kernels": "memory.yaml",
    "calibrate collectives": "collectives.yaml",
}
"""Files that belong to an answer."""
