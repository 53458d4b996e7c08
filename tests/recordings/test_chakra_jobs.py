"""Recorded jobs as Chakra traces and back."""

import numpy as np
import pytest

from perfmodel.base.errors import TraceError
from perfmodel.recordings.self_replay import self_replay
from perfmodel.recordings.storage import assemble_chakra_job, write_chakra_job
from tests.recordings.builders import held_of
from traces.chakra import load_chakra


def load_chakra_job(paths):
    return assemble_chakra_job([load_chakra(path) for path in paths], paths[0].parent)


def test_out_and_in_again_gives_the_same_replay(recorded, tmp_path):
    job = recorded("dlrm_torchrec_v100x4/s0_sst_sleep_pl_dense_after_backward_2")

    back = load_chakra_job(write_chakra_job(job, tmp_path))

    assert np.array_equal(held_of(job).end_ns, held_of(back).end_ns)
    assert self_replay(job) == self_replay(back)
    assert back.report == job.report


def test_a_missing_rank_is_refused(recorded, tmp_path):
    job = recorded("dlrm_param_v100x8")
    paths = write_chakra_job(job, tmp_path)
    with pytest.raises(TraceError, match="each of 8 ranks"):
        load_chakra_job(paths[:-1])


def test_files_of_perfmodel_and_of_others_are_not_mixed(shared_data):
    with pytest.raises(TraceError, match="cannot be mixed"):
        load_chakra_job([shared_data / "traces" / "gpt_tp2_v100x2" / "chakra_rank0.et.gz"])
