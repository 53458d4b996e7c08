import gzip

import pytest

from perfmodel.base.errors import MeasurementError
from perfmodel.execution.executor import SerialExecutor
from perfmodel.extensions.measurements.report import report_scores
from perfmodel.extensions.measurements.validation.runs import validate_runs
from perfmodel.extensions.measurements.validation.runs_table import (
    columns_of,
    load_columns,
    load_runs,
    of_source,
    required_columns,
)
from perfmodel.reports.terminal import to_text

TRANSFORMER = {
    "id": "a", "source": "ours", "framework": "nanotron", "release": "", "device": "h100_sxm",
    "machine": "dgx_h100", "n_gpus": "8", "n_nodes": "1", "gpus_per_node": "8",
    "nvlink_domain": "8", "nic_gbit_per_gpu": "", "power_w": "", "arch": "decoder", "layers": "2",
    "hidden": "1024", "heads": "8", "ffn": "4096", "gated_ffn": "1", "vocab": "32000",
    "seq_len": "1024", "compute_precision": "bf16", "gbs": "16", "mbs": "1", "tp": "2", "pp": "1",
    "cp": "1", "ep": "1", "vpp": "1", "sequence_parallel": "0", "data_sharding": "none",
    "recompute": "none", "attention_kernel": "flash2", "optimizer_kind": "adam", "compiled": "0",
    "flag": "", "iter_time_s": "0.1",
}  # fmt: skip
DLRM = {
    "id": "d", "source": "ours", "framework": "torchrec", "device": "a100_sxm_40gb",
    "machine": "aws_p4d", "n_gpus": "8", "n_nodes": "1", "gpus_per_node": "8",
    "dense_features": "13", "tables": "3", "table_rows": "1000-2000-3000", "emb_dim": "64",
    "lookups": "1", "bottom_layers": "128-64", "top_layers": "128-1", "interaction_kind": "dot",
    "compute_precision": "fp32", "gbs": "2048", "optimizer_kind": "sgd", "placement": "torchrec",
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
    assert deviation.group == "nanotron, h100_sxm"
    assert 0 < deviation.low <= deviation.predicted <= deviation.high


@pytest.mark.parametrize(("ffn", "gated"), [("2816", "1"), ("4096", "0")])
def test_an_ffn_of_another_width_than_that_of_gpt_is_gated(tmp_path, ffn, gated):
    told = predicted_s(tmp_path, ffn=ffn, gated_ffn=gated)
    assert predicted_s(tmp_path, ffn=ffn, gated_ffn="") == told


def test_common_names_of_columns_and_gpus_are_read_and_other_columns_are_named(tmp_path):
    other = {
        "device": "GPU", "n_gpus": "Num GPUs", "gbs": "global_batch_size", "seq_len": "seq-length",
        "compute_precision": "precision", "iter_time_s": "step_time_s",
    }  # fmt: skip
    row = {other.get(name, name): text for name, text in TRANSFORMER.items()}
    board = board_of(tmp_path, row | {"GPU": "H100", "precision": "BF16", "colour": "blue"})

    [deviation] = board.deviations
    assert deviation.predicted == predicted_s(tmp_path)
    assert "Columns that are not read: colour." in board.answers["a"].assumptions
    assert "The GPU H100 is taken as h100_sxm of the catalog." in board.answers["a"].assumptions


def test_a_column_may_state_its_unit_and_milliseconds_are_read(tmp_path):
    row = TRANSFORMER | {"gated_ffn": "0"}
    board = board_of(tmp_path, row)
    for heading, text in (("Step Time (s)", "0.1"), ("Iteration Time (ms)", "100")):
        other = {heading if name == "iter_time_s" else name: one for name, one in row.items()}
        [deviation] = board_of(tmp_path, other | {heading: text}).deviations
        assert (deviation.measured, deviation.predicted) == (
            board.deviations[0].measured,
            board.deviations[0].predicted,
        )
    # Our own column counts where both are there.
    both = board_of(tmp_path, row | {"iter_time_ms": "7"})
    assert both.deviations[0].measured == board.deviations[0].measured


def test_words_of_frameworks_are_read(tmp_path):
    told = predicted_s(tmp_path, data_sharding="zero3", tp="1")
    assert predicted_s(tmp_path, data_sharding="FSDP", tp="1", compute_precision="bfloat16") == told


def test_a_row_of_gpt_without_its_width_has_the_usual_one(tmp_path):
    # 4 x 1024 = 4096.
    told = predicted_s(tmp_path, gated_ffn="0")
    board = board_of(tmp_path, TRANSFORMER | {"gated_ffn": "0", "ffn": ""})
    assert board.deviations[0].predicted == told
    assert (
        "The width of the FFN is not stated; assumed four times hidden."
        in board.answers["a"].assumptions
    )


def test_a_column_under_our_name_comes_before_one_under_another(tmp_path):
    told = predicted_s(tmp_path)
    assert board_of(tmp_path, {"precision": "fp32"} | TRANSFORMER).deviations[0].predicted == told


def test_rows_with_a_flag_of_their_own_are_reported_apart(tmp_path):
    rows = [TRANSFORMER, TRANSFORMER | {"id": "b", "flag": "LOW_MFU;SLOW_SIBLING"}]
    board = board_of(tmp_path, *rows)
    assert list(board.groups) == ["nanotron, h100_sxm", "nanotron, h100_sxm, SLOW_SIBLING"]


def test_rows_without_padding_are_as_long_as_sequences_are_on_average(tmp_path):
    unpadded = predicted_s(tmp_path, flag="VARLEN_UNPADDED", gated_ffn="0")
    # Half of the tokens, at most as many positions as before: within the width of a row of a table.
    assert unpadded == pytest.approx(predicted_s(tmp_path, seq_len="512", gated_ffn="0"), rel=0.01)


def test_a_table_without_ids_counts_its_rows_from_zero(tmp_path):
    row = {name: text for name, text in TRANSFORMER.items() if name != "id"}
    board = board_of(tmp_path, row, row | {"cp": "3"})
    assert [one.row for one in board.deviations] == [0]
    assert [one.row for one in board.unsupported] == [1]


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"cp": "3"}, "are not divisible by tp x pp x cp"),
        ({"ep": "8"}, "ep without experts stated"),
        ({"vpp": "3"}, "interleaving=3 needs pipeline stages"),
        ({"layers": ""}, "not stated: layers"),
        ({"ffn": ""}, "not stated: ffn"),
        ({"device": "warp9"}, "warp9"),
        ({"compute_precision": "int3"}, "int3"),
        ({"recompute": "a little"}, "column recompute: must be one of none, full"),
        ({"iter_time_s": ""}, "no time was measured"),
        ({"iter_time_s": "-1"}, "column iter_time_s: must be a number above zero, got '-1'"),
        ({"layers": "6+6"}, "column layers: must be a whole number above zero, got '6+6'"),
        ({"tp": "3"}, "heads"),
    ],
)
def test_what_cannot_be_asked_is_listed_with_its_reason(tmp_path, change, word):
    board = board_of(tmp_path, TRANSFORMER | change, TRANSFORMER | {"id": "b"})
    assert [one.row for one in board.deviations] == ["b"]
    [unsupported] = board.unsupported
    assert word in unsupported.reason


def test_every_row_is_predicted_or_listed(tmp_path):
    rows = [TRANSFORMER | {"id": str(n), "cp": "3" if n % 3 == 0 else "1"} for n in range(5)]
    board = board_of(tmp_path, *rows)
    assert {one.row for one in board.deviations} == {"1", "2", "4"}
    assert {one.row for one in board.unsupported} == {"0", "3"}


def test_many_micro_batches_are_continued_as_if_all_were_built(tmp_path, monkeypatch):
    # 32 sequences on 4 ranks make 8 micro-batches: more than the 5 that are built.
    continued = predicted_s(tmp_path, gbs="32")
    monkeypatch.setattr("perfmodel.workloads.transformer.family._FILL", 8)
    assert continued == pytest.approx(predicted_s(tmp_path, gbs="32"), rel=1e-3)


TWO_HOSTS = {"n_gpus": "16", "n_nodes": "2"}
ENCODER = {"arch": "encoder (MLM+NSP)", "tp": "1", "gated_ffn": "0", "gbs": "256", "mbs": "32"}
WIDE = {"hidden": "8192", "heads": "64", "ffn": "28672", "layers": "1"}
LARGE = {"layers": "24", "hidden": "4096", "heads": "32", "ffn": "14336", "gbs": "8", "tp": "1",
         "data_sharding": "zero3", "seq_len": "32768", "iter_time_s": "60"}  # fmt: skip


@pytest.mark.parametrize(
    ("fast", "slow"),
    [
        ({}, {"layers": "4"}),
        ({}, {"recompute": "full"}),
        ({}, {"gbs": "32"}),
        (TWO_HOSTS | {"nic_gbit_per_gpu": "400"}, TWO_HOSTS | {"nic_gbit_per_gpu": "12.5"}),
        ({"framework": "torchtitan", "compiled": "1"}, {"framework": "torchtitan"}),
        # A framework may compute the logits of all tokens, not of the masked ones alone.
        (ENCODER | {"framework": "megatron_lm"}, ENCODER | {"framework": "nvidia_pytorch_bert"}),
        (WIDE, WIDE | {"power_w": "350"}),
    ],
)
def test_more_work_or_a_slower_machine_takes_longer(tmp_path, fast, slow):
    assert predicted_s(tmp_path, **fast) < predicted_s(tmp_path, **slow)


def test_stages_of_several_runs_of_layers_are_predicted(tmp_path):
    pipeline = {"layers": "8", "pp": "2", "tp": "1", "gbs": "64"}
    assert predicted_s(tmp_path, **pipeline, vpp="2") != predicted_s(tmp_path, **pipeline)


@pytest.mark.parametrize(
    ("row", "change", "words", "is_said"),
    [
        (TRANSFORMER, {"framework": "abacus"}, ("'abacus'", "'generic'"), True),
        (TRANSFORMER, {"framework": "abacus"}, ("none with", "Interval"), True),
        (DLRM, {"framework": "abacus"}, ("'abacus'", "'generic_dlrm'"), True),
        (DLRM, {"framework": "abacus"}, ("none with", "Interval"), True),
        # A framework of another family is an unknown one.
        (DLRM, {"framework": "nanotron"}, ("'generic_dlrm'",), True),
        (TRANSFORMER, {"machine": ""}, ("machine is not stated",), True),
        (TRANSFORMER, {"mbs": ""}, ("micro-batch is not stated",), True),
        # What ran and would not fit was recomputed, unless the row says otherwise.
        (TRANSFORMER, {"recompute": ""} | LARGE, ("is recomputed in the backward pass",), True),
        (TRANSFORMER, {"recompute": ""}, ("is recomputed in the backward pass",), False),
        (TRANSFORMER, {"recompute": "none"} | LARGE, ("is recomputed in the backward",), False),
    ],
)
def test_what_is_assumed_is_said_with_the_row(tmp_path, row, change, words, is_said):
    document = board_of(tmp_path, row | change).to_json()
    [found] = document["rows"]
    said = [one for one in found["assumptions"] if all(word in one for word in words)]
    assert (document["kind"], bool(said)) == ("runs", is_said)


def test_columns_that_are_missing_are_empty(tmp_path):
    kept = ("device", "n_gpus", "gbs", "iter_time_s", "layers", "hidden", "heads", "seq_len")
    row = {name: TRANSFORMER[name] for name in (*kept, "ffn", "vocab", "compute_precision")}
    [deviation] = board_of(tmp_path, row).deviations
    assert deviation.group == "?, h100_sxm"


def test_a_recommendation_run_is_predicted_with_its_loader(tmp_path):
    board = board_of(tmp_path, DLRM)
    # Such runs are bound by their loader: 8.9 ms and 0.537 us for each of 2,048 samples.
    assert board.deviations[0].predicted >= 0.00999
    assert any(
        "Loading a batch takes 9.99" in sentence for sentence in board.answers["d"].assumptions
    )


def test_a_compressed_table_is_read_like_a_plain_one(tmp_path):
    plain = write(tmp_path, TRANSFORMER)
    packed = tmp_path / "runs.csv.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert load_runs(packed) == load_runs(plain)


def test_a_missing_column_is_named(tmp_path):
    row = {name: text for name, text in TRANSFORMER.items() if name != "hidden"}
    with pytest.raises(MeasurementError, match="missing: hidden"):
        load_runs(write(tmp_path, row))


def test_a_source_nobody_has_is_refused(tmp_path):
    with pytest.raises(MeasurementError, match="no row has such a source"):
        of_source([load_runs(write(tmp_path, TRANSFORMER))], "theirs")


@pytest.mark.parametrize(
    ("source", "limit_pct", "bias_pct"),
    [("vTrain", 12, 8), ("llm-foundry", 8, 7), ("DLPerf GPT V100 (Megatron", 15, 12)],
)
def test_core_transformers_stay_within_their_error(shared_data, source, limit_pct, bias_pct):
    [table] = of_source([load_runs(shared_data / "runs" / "core_transformer.csv")], source)
    board = validate_runs(table, executor=SerialExecutor())
    assert board.overall is not None
    assert board.overall.rows == len(table.rows)
    assert board.overall.mape_pct < limit_pct
    # A ratio that stands for a kernel priced too fast shows here once the kernel is mended:
    # then fit the stacks anew, see experiments/runs_scoreboard.
    assert abs(board.overall.bias_pct) < bias_pct
    # Intervals are of 90 %, from sources left out; rows of one source may miss them together.
    assert board.overall.inside_interval_pct >= 80


def test_the_interval_says_which_evidence_it_rests_on(tmp_path):
    board = board_of(tmp_path, TRANSFORMER, TRANSFORMER | {"id": "b", "framework": "abacus"})
    known, unknown = (one.high / one.predicted for one in board.deviations)
    assert any("1 sigma" in sentence for sentence in board.answers["a"].assumptions)
    assert unknown > known > 1.05


def test_every_column_says_what_it_means():
    for family in load_columns().families:
        for name, column in columns_of(family).items():
            assert column.meaning, name
            assert set(required_columns(family)) <= set(columns_of(family))


def test_layouts_of_one_job_are_compared_where_their_times_are_clearly_apart(tmp_path):
    rows = [
        TRANSFORMER | {"id": name, "tp": tp, "gbs": gbs, "iter_time_s": seconds, "n_nodes": ""}
        for name, tp, gbs, seconds in (
            ("a", "1", "16", "0.1"), ("b", "8", "16", "0.2"), ("c", "4", "16", "0.103"),
            ("d", "8", "32", "0.05"),
        )
    ]  # fmt: skip
    board = board_of(tmp_path, *rows)
    # Of the three pairs with a batch of 16 that of 0.1 and 0.103 s is too close to call.
    assert [(one.group, one.pairs) for one in board.orders] == [
        ("nanotron, one host", 2),
        ("one host", 2),
    ]
    by_row = {one.row: one.predicted for one in board.deviations}
    right = sum(by_row[fast] < by_row["b"] for fast in ("a", "c"))
    assert board.orders[1].right == right
    assert f"- one host: {50 * right:.1f} % of 2 pairs" in to_text(report_scores(board))


def test_a_fused_interaction_is_told_from_a_plain_one(tmp_path):
    kernels = ("", "fused", "plain")
    rows = [
        DLRM | {"id": word or "none", "framework": "hugectr", "interaction_kernel": word}
        for word in kernels
    ]
    silent, fused, plain = (one.predicted for one in board_of(tmp_path, *rows).deviations)
    assert silent == fused < plain


def test_a_run_without_a_layout_gets_the_one_that_predict_would_choose(tmp_path):
    open_layout = {"gbs": "4", "tp": "", "pp": "", "cp": "", "mbs": ""}
    said = board_of(tmp_path, TRANSFORMER | open_layout).answers["a"].assumptions

    # Four sequences cannot be shared by eight data-parallel ranks.
    assert any(sentence.startswith("You gave no layout") for sentence in said)
    assert not any("dp=8" in sentence for sentence in said)


def test_a_batch_that_does_not_split_is_that_of_its_micro_batches(tmp_path):
    odd = {"gbs": "18", "mbs": "2", "grad_accum": "3"}
    said = board_of(tmp_path, TRANSFORMER | odd).answers["a"].assumptions

    # Eight ranks in pairs: 4 replicas x 3 micro-batches of 2.
    words = "A batch of 18 does not split into whole micro-batches; assumed 24 sequences."
    assert words in said
