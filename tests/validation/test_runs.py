import gzip

import pytest

from perfmodel.base.errors import MeasurementError
from perfmodel.execution.serial import SerialExecutor
from perfmodel.validation.runs import validate_runs
from perfmodel.validation.runs_table import load_runs

TRANSFORMER = {
    "id": "a", "source": "ours", "software": "nanotron", "gpu": "H100-SXM5-80GB", "n_gpus": "8",
    "n_nodes": "1", "gpus_per_node": "8", "intra_node": "NVLink4", "inter_node": "n/a",
    "arch": "decoder", "layers": "2", "hidden": "1024", "heads": "8", "ffn": "4096",
    "gated_ffn": "1", "vocab": "32000", "seq_len": "1024", "precision": "bf16", "gbs": "16",
    "mbs": "1", "tp": "2", "pp": "1", "dp": "4", "cp": "1", "ep": "1", "vpp": "1", "sp": "no",
    "sharding": "none", "act_recompute": "none", "attn_impl": "flash", "iter_time_s": "0.1",
}  # fmt: skip
DLRM = {
    "id": "d", "source": "ours", "software": "TorchRec", "gpu": "A100-SXM4-40GB", "n_gpus": "8",
    "n_nodes": "1", "gpus_per_node": "8", "intra_node": "NVLink3", "inter_node": "n/a",
    "dense_features": "13", "n_tables": "3", "table_rows": "1000-2000-3000", "emb_dim": "64",
    "multi_hot": "1 (one-hot)", "bottom_mlp": "13-128-64", "top_mlp": "70-128-1",
    "interaction": "dot", "precision": "fp32", "gbs": "2048", "optimizer": "SGD",
    "iter_time_s": "0.01",
}  # fmt: skip


def write(folder, *rows):
    path = folder / "runs.csv"
    lines = [",".join(rows[0])] + [",".join(row.values()) for row in rows]
    path.write_text("\n".join(lines) + "\n")
    return path


def board_of(folder, *rows):
    return validate_runs(load_runs(write(folder, *rows)), executor=SerialExecutor())


def predicted_s(folder, **changes):
    return board_of(folder, TRANSFORMER | changes).deviations[0].predicted


def test_a_run_is_predicted_and_named_by_its_id(tmp_path):
    board = board_of(tmp_path, TRANSFORMER)
    [deviation] = board.deviations
    assert deviation.row == "a"
    assert deviation.group == "ours, H100-SXM5-80GB"
    assert 0 < deviation.low <= deviation.predicted <= deviation.high


def test_a_table_without_ids_counts_its_rows_from_zero(tmp_path):
    row = {name: text for name, text in TRANSFORMER.items() if name != "id"}
    board = board_of(tmp_path, row, row | {"cp": "2"})
    assert [one.row for one in board.deviations] == [0]
    assert [one.row for one in board.unsupported] == [1]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"cp": "2"}, "context parallelism"),
        ({"ep": "8"}, "expert parallelism"),
        ({"vpp": "3"}, "interleaving=3 needs pipeline stages"),
        ({"layers": ""}, "not stated: layers"),
        ({"gpu": "Warp9"}, "Warp9"),
        ({"software": "Abacus 2"}, "Abacus 2"),
        ({"precision": "int3"}, "int3"),
        ({"sharding": "LoRA adapters only"}, "adapters"),
        ({"attn_impl": "fused FMHA unpadded"}, "without padding"),
        ({"iter_time_s": ""}, "no time was measured"),
        ({"tp": "3"}, "heads"),
    ],
)
def test_what_cannot_be_asked_is_listed_with_its_reason(tmp_path, change, word):
    board = board_of(tmp_path, TRANSFORMER | change)
    assert not board.deviations
    [unsupported] = board.unsupported
    assert word in unsupported.reason


def test_every_row_is_predicted_or_listed(tmp_path):
    rows = [TRANSFORMER | {"id": str(n), "cp": "2" if n % 3 == 0 else "1"} for n in range(5)]
    board = board_of(tmp_path, *rows)
    assert {one.row for one in board.deviations} == {"1", "2", "4"}
    assert {one.row for one in board.unsupported} == {"0", "3"}


def test_many_micro_batches_are_continued_as_if_all_were_built(tmp_path, monkeypatch):
    # 32 sequences on 4 ranks make 8 micro-batches: more than the 5 that are built.
    continued = predicted_s(tmp_path, gbs="32")
    monkeypatch.setattr("perfmodel.workloads.jobs._FILL", 8)
    assert continued == pytest.approx(predicted_s(tmp_path, gbs="32"), rel=1e-3)


def test_more_work_takes_longer(tmp_path):
    base = predicted_s(tmp_path)
    assert predicted_s(tmp_path, layers="4") > base
    assert predicted_s(tmp_path, act_recompute="full") > base
    assert predicted_s(tmp_path, gbs="32") > base


def test_a_slower_network_is_taken_from_the_row(tmp_path):
    two_hosts = {"n_gpus": "16", "n_nodes": "2", "dp": "8"}
    fast = predicted_s(tmp_path, **two_hosts, inter_node="8x IB 400 Gb/s")
    slow = predicted_s(tmp_path, **two_hosts, inter_node="IB 100 Gb/s per node")
    assert slow > fast


def test_a_recommendation_run_is_predicted_with_its_loader(tmp_path):
    board = board_of(tmp_path, DLRM)
    # The loader of the profile: 8.9 ms and 0.537 us for each of 2,048 samples.
    assert board.deviations[0].predicted >= 0.00999
    assert any("loader" in sentence for sentence in board.assumptions["d"])


def test_assumptions_stand_beside_the_rows_they_carry(tmp_path):
    document = board_of(tmp_path, TRANSFORMER | {"mbs": ""}).to_json()
    [row] = document["rows"]
    assert any("micro-batch is not stated" in sentence for sentence in row["assumptions"])
    assert document["kind"] == "runs"


def test_a_compressed_table_is_read_like_a_plain_one(tmp_path):
    plain = write(tmp_path, TRANSFORMER)
    packed = tmp_path / "runs.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load_runs(packed) == load_runs(plain)


def test_a_missing_column_is_named(tmp_path):
    row = {name: text for name, text in TRANSFORMER.items() if name != "hidden"}
    with pytest.raises(MeasurementError, match="missing: hidden"):
        load_runs(write(tmp_path, row))


def test_all_wrong_numbers_are_named_with_row_and_column(tmp_path):
    with pytest.raises(MeasurementError) as caught:
        load_runs(
            write(
                tmp_path,
                TRANSFORMER | {"layers": "many"},
                TRANSFORMER | {"id": "b", "iter_time_s": "-1"},
            )
        )
    assert "row a, column layers" in str(caught.value)
    assert "row b, column iter_time_s" in str(caught.value)


def test_a_source_nobody_has_is_refused(tmp_path):
    with pytest.raises(MeasurementError, match="no row has such a source"):
        load_runs(write(tmp_path, TRANSFORMER)).of_source("theirs")


@pytest.mark.parametrize(
    ("source", "limit_pct", "bias_pct"),
    [("vTrain", 10, 6), ("llm-foundry", 7, 5), ("DLPerf GPT", 8, 6)],
)
def test_core_transformers_stay_within_their_error(shared_data, source, limit_pct, bias_pct):
    table = load_runs(shared_data / "runs" / "core_transformer.csv").of_source(source)
    board = validate_runs(table, executor=SerialExecutor())
    assert board.overall is not None
    assert board.overall.rows == len(table.rows)
    assert board.overall.mape_pct < limit_pct
    # A ratio that stands for a kernel priced too fast shows here once the kernel is mended:
    # then fit the profile anew, see experiments/runs_scoreboard.
    assert abs(board.overall.bias_pct) < bias_pct
    # Intervals are of 90 %; a few rows of one source may miss them together.
    assert board.overall.inside_interval_pct >= 75


def test_stages_of_several_runs_of_layers_are_predicted(tmp_path):
    pipeline = {"layers": "8", "pp": "2", "tp": "1", "dp": "4", "gbs": "64"}
    plain, interleaved = (predicted_s(tmp_path, **pipeline, vpp=runs) for runs in ("1", "2"))
    assert interleaved != plain


def test_the_compiled_runs_of_a_framework_have_their_own_profile(tmp_path):
    row = TRANSFORMER | {"software": "torchtitan", "overlap": "eager"}
    compiled = board_of(tmp_path, row | {"overlap": "torch.compile"}).deviations[0]
    assert compiled.predicted < board_of(tmp_path, row).deviations[0].predicted


def test_a_cluster_with_a_measured_network_is_not_the_catalogs(tmp_path):
    across = {"tp": "16", "heads": "16", "dp": "1", "n_gpus": "16", "n_nodes": "2"}
    words = {"intra_node": "NVLink4 (AWS p5)", "inter_node": "AWS EFA 3200 Gb/s per node"}
    catalog = predicted_s(tmp_path, **across, **words)
    own = predicted_s(tmp_path, **across, **words, source="Ultra-Scale")
    assert own > catalog
