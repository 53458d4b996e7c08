"""PyTorch execution traces."""

import json

import pytest

from perfmodel.base.errors import TraceError
from traces.execution_trace import load_execution_trace


def test_both_schemas_give_the_same_operators(tmp_path):
    old = {"id": 3, "name": "aten::mm", "parent": 2, "rf_id": 9, "seq_id": 4, "tid": 1, "fw_tid": 0,
           "input_shapes": [[2, 3]], "input_types": ["Tensor(float)"]}  # fmt: skip
    attributes = [{"name": k, "type": "uint64", "value": old[k]}
                  for k in ("rf_id", "seq_id", "tid", "fw_tid")]  # fmt: skip
    new = {"id": 3, "name": "aten::mm", "ctrl_deps": 2, "attrs": attributes,
           "inputs": {"values": [], "shapes": [[2, 3]], "types": ["Tensor(float)"]}}  # fmt: skip
    first, second = (write(tmp_path, schema="1.0.1", nodes=[item]) for item in (old, new))
    assert first.operators == second.operators
    assert [one.shape for one in first.operators[0].inputs] == [[2, 3]]
    assert first.operators[0].thread == 1


def test_a_tensor_is_where_its_last_word_says_and_an_empty_list_nowhere(tmp_path):
    on_host, on_gpu = ([60, 1, 0, 4, 4, device] for device in ("cpu", "cuda:0"))
    values = {"values": [on_host, [on_gpu], [], 7], "shapes": [[4]] * 4, "types": ["Tensor"] * 4}
    item = {"id": 3, "name": "aten::copy_", "ctrl_deps": 2, "attrs": [], "inputs": values}
    [operator] = write(tmp_path, schema="1.0.1", nodes=[item]).operators
    assert [one.is_on_host for one in operator.inputs] == [True, False, False, False]


def write(folder, **document):
    (folder / "a.json").write_text(json.dumps(document))
    return load_execution_trace(folder / "a.json")


def test_a_faulty_operator_is_reported_and_a_file_without_schema_refused(tmp_path):
    items = [{"id": 1, "name": "a"}, {"name": "no id"}]
    trace = write(tmp_path, schema="1.0.1", nodes=items)
    assert len(trace.operators) == 1
    assert "left out" in trace.faults[0]
    with pytest.raises(TraceError, match="schema"):
        write(tmp_path, nodes=items[:1])


def test_operators_without_a_parent_or_before_it_are_reported(tmp_path):
    # Number 1 is the process, which is often not written; 9 is nowhere; 5 is its own parent.
    items = [
        {"id": number, "name": "a", "parent": parent}
        for number, parent in ((2, 1), (3, 2), (4, 9), (5, 5), (6, 7), (7, 2))
    ]
    lost, early = write(tmp_path, schema="1.0.1", nodes=items).faults

    assert "parent is not in the file" in lost
    assert "operator 4 in 9" in lost
    assert early.startswith("operator before its parent (3 times, first at 4)")


def test_recorded_files_load(shared_data):
    path = shared_data / "traces" / "dlrm_param_v100x8" / "pytorch_et" / "rank0.json.gz"
    assert len(load_execution_trace(path).operators) == 1675
