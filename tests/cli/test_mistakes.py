"""Mistakes that people make: each ends in a few lines that say what to do, and no traceback."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from perfmodel.cli import main

MOST_LINES = 12

GPT = "name: g\nfamily: transformer\nbatch: 64\nsequence_length: 1024\n"
HOST = "name: m\ndevice: {device}\nvertices: {{gpu: 2, nvswitch: 1}}\nlinks:\n  - {link}\n"
LINK = "{{between: [{ends}], kind: nvlink, lanes: 18, bandwidth: {rate}, latency: {late}}}"
RUNS = "id,device,n_gpus,gbs,iter_time_s,layers,hidden,heads,seq_len\n"
CALLS = "topology,hosts,nranks,collective,size_bytes,time_us\n"


def host(*, device="h100_sxm", ends="gpu:*, nvswitch:0", rate="25 GB/s", late="400 ns"):
    return HOST.format(device=device, link=LINK.format(ends=ends, rate=rate, late=late))


FILES = {
    "filled.csv": "x" * 60_000 + "\n1\n",
    "cut.csv": CALLS + "dgx_a100,1,8,all_reduce,8,31.",
    "empty.yaml": "",
    "list.yaml": "- 1\n- 2\n",
    "tabs.yaml": "name: x\n\tdevice: h100_sxm\n",
    "twice.yaml": "name: a\nname: b\n",
    "bare_number.yaml": host(rate="25"),
    "wrong_unit.yaml": host(rate="25 GB", late="400 GB/s"),
    "no_gpu.yaml": host(device="h100"),
    "no_vertex.yaml": host(ends="gpu:*, nvswich:0"),
    "host.yaml": host(),
    "own_gpu.yaml": host(device="gpu.yaml"),
    "gpu.yaml": "name: ours\n",
    "asked.yaml": "topology: host.yaml\n",
    "misspelt.yaml": GPT + "model: {layrs: 4, hidden: 64, heads: 4, ffn: 256, vocab: 100}\n",
    "words.yaml": GPT + "model: {layers: four, hidden: 64, heads: -4, ffn: 256, vocab: 100}\n",
    "heads.yaml": GPT + "model: {layers: 4, hidden: 100, heads: 16, ffn: 256, vocab: 100}\n",
    "family.yaml": "name: g\nfamily: cnn\nbatch: 3\n",
    "gpt.json": '{"name": "g", "family": "transformer"}',
    "question.yaml": "topologi: dgx_h100\nhosts: two\n",
    "changes.yaml": "topology: dgx_h100\nset: [batch, 4]\n",
    "broken.json": "{not json",
    "other_plan.json": '{"plan": []}',
    "tables.yaml": "tables:\n  - {name: a, rows: 1000, width: 64}\n",
    "bad_tables.yaml": "tables:\n  - {name: a, rows: -1, width: 64}\n  - {name: b, rows: 1}\n",
    "headings.csv": "a,b,c\n1,2,3\n",
    "empty.csv": "",
    "eight.csv": RUNS + "".join(f"r{n},h100_sxm,eight,16,5,32,4096,32,8192\n" for n in range(40)),
    "negative.csv": CALLS + "".join(f"dgx_h100,1,8,all_reduce,1024,-{n}\n" for n in range(1, 161)),
    "kinds.csv": CALLS + "dgx_h100,1,8,alreduce,1024,5\n",
    "notes.txt": "hello\n",
    "no_calibration.yaml": "name: x\n",
    "learned.yaml": GPT + "model: {layers: 4, hidden: 64, heads: 4, ffn: 256, vocab: 100}\n",
    "million.yaml": "tables:\n  - {name: a, rows: 120M, width: 64}\n",
    "nccl.txt": "# nThread 1 nGpus 1 minBytes 1024\n#  Rank  0 on h device  0\n",
}

# What was typed, the exit code, and words of the message that say what to do.
MISTAKES = [
    ("ui --port 70000", 2, "'--port': must be at most 65535"),
    ("search llama3_8b --topology dgx_h100 --minimise money", 2, "must be time, cost or energy"),
    ("search llama3_8b --workload gpt2_xl --topology dgx_h100", 1, "--workload: is given 2 times"),
    ("rank llama3_8b --topology dgx_h100", 1, "llama3_8b: has no embedding tables to place"),
    ("schema nothing", 2, "'KIND': 'nothing' is not one of"),
    ("predict", 2, "--topology dgx_h100"),
    ("predit --topology dgx_h100", 2, "'predict'"),
    ("predict --topolgy dgx_h100", 2, "--topology"),
    ("predict --topology", 2, "requires an argument"),
    ("predict --topology dgx_h10", 1, "Near: dgx_h100"),
    ("predict --topology h100_sxm", 1, "is a GPU, and a machine is needed. Machines with it:"),
    ("predict --topology dgx_h100 --topology dgx_a100", 1, "given 2 times"),
    ("predict --topology dgx_h100 --workload llama3_7b", 1, "Near: llama3_70b"),
    ("predict --topology dgx_h100 --stack pytorch_eagre", 1, "Near: pytorch_eager"),
    ("predict --topology dgx_h100 --hosts 0", 2, "'--hosts': must be at least 1"),
    ("predict --topology dgx_h100 --hosts two", 2, "must be a whole number"),
    ("predict --topology hgx_h100", 1, "Near: dgx_h100, "),
    ("predict --topology dgx_h200", 1, "Near: hgx_h200, "),
    ("compare --topology dgx_a100,dgx_h1000 --workload gpt2_xl", 1, "Near: dgx_h100"),
    ("predict --topology dgx_a100 --sweep stack=pytorch_eager,hugectrr", 1, "Near: hugectr"),
    ("rank --topology dgx_h100 --sharder torchrek", 1, "Did you mean torchrec?"),
    ("predict --topology dgx_h100 --ranks-per-host 16", 1, "2 hosts or more, with 8 at most."),
    ("predict --topology dgx_h100 --set batch", 1, "field=value"),
    ("predict --topology dgx_h100 --set bach=4096", 1, "Near: batch"),
    ("predict --topology dgx_h100 --set batch=-4", 1, "must be at least 1, got -4"),
    ("predict --topology dgx_h100 --set batch=1001", 1, "Use batch=1000 or batch=1008"),
    ("predict --topology dgx_h100 --workload llama3_8b --set parallel.tp=3", 1, "heads (32) are"),
    ("predict --topology dgx_h100 --workload llama3_8b --set parallel.pp=64", 1, "layers (32)"),
    ("predict --topology dgx_h100 --workload llama3_8b --set training.precision=fp17", 1, "bf16"),
    ("predict --topology empty.yaml", 1, "it is empty"),
    ("predict --topology list.yaml", 1, "`key: value`"),
    ("predict --topology tabs.yaml", 1, r"Line 2, column 1: found character '\t'"),
    ("predict --topology twice.yaml", 1, "'name' occurs twice"),
    ("predict --topology folder", 1, "it is a directory"),
    ("predict --topology bare_number.yaml", 1, "must carry its unit"),
    ("predict --topology wrong_unit.yaml", 1, "400 Gbit/s"),
    ("predict --topology no_gpu.yaml", 1, "Near: h100_pcie, h100_sxm"),
    ("topology check no_vertex.yaml", 1, "it has gpu, nvswitch"),
    ("predict --topology heads.yaml", 1, "Give it with --workload"),
    ("predict --topology dgx_h100 --workload host.yaml", 1, "Give it with --topology"),
    ("predict --topology dgx_h100 --workload misspelt.yaml", 1, "did you mean 'layers'"),
    ("predict --topology dgx_h100 --workload words.yaml", 1, "must be a whole number, got 'four'"),
    ("predict --topology dgx_h100 --workload heads.yaml", 1, "hidden must be divisible by heads"),
    ("predict --topology dgx_h100 --workload family.yaml", 1, "dlrm, transformer, got 'cnn'"),
    ("predict --topology dgx_h100 --workload gpt.json", 1, "sequence_length"),
    ("predict --topology dgx_h100 --workload learned.yaml", 1, "or positions: rotary"),
    ("predict --topology dgx_h100 --workload transformer_small", 1, "near: batch=32. Change"),
    ("predict --topology dgx_h100 --json nowhere/x.json", 1, "Make it first"),
    ("predict --topology dgx_h100 --json folder", 1, "must be a file"),
    ("predict --topology dgx_h100 --json x --csv x", 1, "is also the output of --csv"),
    ("predict --topology host.yaml --json ./host.yaml", 1, "is also read, as --topology"),
    ("rank --topology dgx_h100 --tables tables.yaml --csv tables.yaml", 1, "is also read"),
    ("calibrate gemm headings.csv --out headings.csv", 1, "is also read, as "),
    ("predict --topology own_gpu.yaml --csv gpu.yaml", 1, "--csv would write over it"),
    ("import . --out job --json host.yaml", 1, "is also read, as "),
    ("predict --scenario asked.yaml --json host.yaml", 1, "--json would write over it"),
    ("predict --topology dgx_h100 --plot x.docx", 1, ".png, .svg, .pdf"),
    ("predict --topology dgx_h100 --report x.pdf", 1, "must end in .html"),
    ("predict --topology dgx_h100 --ranks 0", 1, "Give --trace-out"),
    ("predict --topology dgx_h100 --executor cuda", 2, "'auto', 'serial', 'ray'"),
    ("predict --topology dgx_h100 --ray-address nowhere.invalid:6379", 1, "`ray start --head`"),
    ("predict --topology dgx_h100 --samples 1000000", 1, "at most 10000"),
    ("predict --job nowhere", 1, "as `perfmodel import` writes it"),
    ("predict --job folder --workload llama3_8b", 2, "cannot be combined with --job"),
    ("predict --scenario question.yaml", 1, "did you mean 'topology'?"),
    ("predict --scenario changes.yaml", 1, "must be a mapping"),
    ("predict --scenario a.yaml --tables t.yaml", 2, "cannot be combined with --scenario"),
    ("predict --scenario a.yaml --samples 9", 2, "cannot be combined with --scenario"),
    ("predict --topology dgx_h100 --sweep batch=8,16 --require-fit", 2, "several answers"),
    ("predict --topology dgx_h100 --trace-out t.json --ranks 8-3", 1, "must run upwards"),
    ("validate gemm products.csv --csv folder", 1, "must be a file"),
    ("predict --scenario nowhere.yaml", 1, "perfmodel init scenario"),
    ("predict --topology dgx_h100 --sweep batch", 1, "batch=4096,8192"),
    ("predict --topology dgx_h100 --sweep batch=65536:4096:x2", 1, "must go up"),
    ("predict --topology dgx_h100 --sweep bach=4096,8192", 1, "Near: batch"),
    (
        "predict --topology dgx_h100 --tables bad_tables.yaml",
        1,
        "must be at least 1, got -1",
    ),
    ("predict --topology dgx_h100 --plan broken.json", 1, "not valid JSON"),
    ("predict --topology dgx_h100 --plan other_plan.json", 1, "must be a mapping"),
    ("predict --topology dgx_h100 --calibration nowhere.yaml", 1, "No such file"),
    ("predict --topology dgx_h100 --calibration no_calibration.yaml", 1, "calibrate collectives"),
    ("predict llama3_8b extra --topology dgx_h100", 2, "unexpected extra argument"),
    ("predict llama3_8b --workload gpt2_xl --topology dgx_h100", 2, "are different"),
    ("predict --topology dgx_h100 --was dgx_a100", 2, "cannot be combined with a model"),
    ("predict --scenario a.yaml --seed 0", 2, "cannot be combined with --scenario"),
    ("compare", 2, "--topology a,b"),
    ("compare --topology dgx_h100", 2, "give two or more of something"),
    ("rank --topology dgx_h100 --sharder greedy", 1, "size_greedy"),
    ("rank --topology dgx_h100 --by p95", 1, "Add --batches 200"),
    ("rank --topology dgx_h100 --workload llama3_8b", 1, "use a dlrm workload"),
    ("rank --topology dgx_h100 --tables million.yaml", 1, "(line 2): must be a whole number"),
    ("rank --topology dgx_h100 --tables tables.yaml --indices tables.yaml", 1, ".npz"),
    ("search --workload dlrm_dcnv2 --topology dgx_h100", 1, "perfmodel rank --search"),
    ("search --workload llama3_8b --topology dgx_h100 --hosts 1,x", 2, "1,2,4"),
    ("search --workload llama3_8b --topology dgx_h100 --set parallel.tp=7", 1, "Fix less"),
    ("collective --topology dgx_h100 --kind allredcue --size 1MiB", 1, "Did you mean all_reduce?"),
    ("collective --topology dgx_h100 --kind all_reduce --size 64", 1, "must carry its unit"),
    ("collective --topology dgx_h100 --kind all_reduce", 1, "needs --size"),
    ("collective --topology dgx_h100 --kind all_reduce --size 1MiB --ranks 9", 1, "2 hosts"),
    ("collective --topology dgx_h100 --kind all_reduce --size 1MiB --dtype fp13", 1, "fp16"),
    ("kernel gemm --m 1 --n 1 --k 1", 1, "--device h100_sxm"),
    ("import nowhere --out j", 1, "does not exist"),
    ("import folder --out j", 1, "one file per rank"),
    ("import notes.txt --out j", 1, "export_chrome_trace"),
    ("whatif", 2, "--apply NAME"),
    ("whatif folder --apply scale", 1, "as `perfmodel import` writes it"),
    ("replay nowhere", 1, "as `perfmodel import` writes it"),
    ("validate runs headings.csv", 1, "must have the columns device"),
    ("validate runs headings.csv", 1, "These are not known: a, b, c."),
    ("validate runs eight.csv", 1, "no row could be predicted"),
    ("validate collectives headings.csv", 1, "must have the columns topology, hosts"),
    ("validate collectives negative.csv", 1, "row 4 and 155 more: time_us must be above zero"),
    ("validate collectives kinds.csv", 1, "Did you mean all_reduce?"),
    ("validate gemm headings.csv", 1, "must have the columns"),
    ("validate memory filled.csv", 1, "has columns op, B, H (fp32)"),
    ("validate collectives cut.csv", 1, "Add a line break if nothing is missing"),
    ("calibrate collectives kinds.csv --out nowhere/c.yaml", 1, "Make it first"),
    ("calibrate collectives nccl.txt --out c.yaml", 1, "--kind all_reduce"),
    ("calibrate gem x.csv", 2, "'gemm'"),
    ("init workload --out notes.txt", 1, "is not overwritten"),
    ("init workload --out nowhere/x.yaml", 1, "Make it first"),
    ("schema topologie", 2, "'topology'"),
    ("workload show lama3_8b", 1, "Near: llama3_8b"),
]


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A folder with files as people write them."""
    path = tmp_path_factory.mktemp("mistakes")
    for name, text in FILES.items():
        (path / name).write_text(text)
    (path / "folder").mkdir()
    return path


@pytest.mark.parametrize(("typed", "code", "advice"), MISTAKES, ids=[one[0] for one in MISTAKES])
def test_a_mistake_is_told_in_a_few_lines_with_what_to_do(
    typed, code, advice, folder, monkeypatch, capsys
):
    monkeypatch.chdir(folder)
    before = {path.name for path in Path().iterdir()}
    with pytest.raises(SystemExit) as stopped:
        main(shlex.split(typed))

    said = capsys.readouterr().err
    assert stopped.value.code == code
    assert advice in " ".join(said.split())
    assert len(said.splitlines()) <= MOST_LINES
    assert max(map(len, said.splitlines())) < 2_100
    assert "Traceback" not in said
    assert "internal fault" not in said
    assert {path.name for path in Path().iterdir()} == before
