import subprocess
import sys

import pytest

PACKAGES = ("perfmodel", "collectives", "embeddings", "topologies", "traces")


@pytest.mark.parametrize("name", PACKAGES)
def test_a_folder_of_the_same_name_where_somebody_works_is_not_imported(tmp_path, name):
    (tmp_path / name).mkdir()
    (tmp_path / name / "mine.yaml").write_text("name: mine")

    done = subprocess.run(
        [sys.executable, "-c", "from perfmodel.api import predict; print(predict.__name__)"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.stdout == "predict\n", done.stderr
