"""Index files: what is read, and what is refused with its place."""

from __future__ import annotations

import zipfile

import numpy as np
import pyarrow
import pyarrow.parquet
import pytest

from embeddings import index_files
from embeddings.index_data import build_index_data, describe_data, lengths_from_offsets
from embeddings.index_files import load_index_data
from embeddings.table import EmbeddingTable
from perfmodel.base.errors import InputError

INDICES = np.array([1, 2, 2, 0, 5, 5, 5])
LENGTHS = np.array([[2, 1], [0, 4]])


def test_every_format_gives_the_same_data(tmp_path):
    torch = pytest.importorskip("torch")
    np.savez(tmp_path / "a.npz", indices=INDICES, lengths=LENGTHS)
    np.savez(tmp_path / "b.npz", indices=INDICES, offsets=[0, 2, 3, 3, 7], tables=2)
    columns = {"u": [[1, 2], [2]], "v": [[], [0, 5, 5, 5]]}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "c.parquet")
    tensors = (torch.tensor(INDICES), torch.tensor([0, 2, 3, 3, 7]), torch.tensor(LENGTHS))
    torch.save(tensors, tmp_path / "d.pt")
    for name in ("a.npz", "b.npz", "c.parquet", "d.pt"):
        data = load_index_data(tmp_path / name)
        assert data.lengths.tolist() == LENGTHS.tolist()
        assert data.indices.tolist() == INDICES.tolist()


def test_an_archive_may_hold_an_array_per_table(tmp_path):
    np.savez(tmp_path / "x.npz", user=[4, 4, 1], clicks=[[7, 8], [8, 8], [0, 7]])
    data = load_index_data(tmp_path / "x.npz")
    assert data.names == ("user", "clicks")
    assert data.lengths.tolist() == [[1, 1, 1], [2, 2, 2]]
    assert data.indices.tolist() == [4, 4, 1, 7, 8, 8, 8, 0, 7]


@pytest.mark.parametrize(
    ("arrays", "fault"),
    [({"indices": [1, -2, 3], "lengths": [[2, 1]]}, "indices[1]: must not be negative, got -2"),
     ({"indices": [1.0, np.nan], "lengths": [[2]]}, "indices[1]: must be finite, got nan"),
     ({"indices": [1.0, np.inf], "lengths": [[2]]}, "indices[1]: must be finite, got inf"),
     ({"indices": [0.5], "lengths": [[1]]}, "indices[0]: must be a whole number, got 0.5"),
     ({"indices": [2.0**60], "lengths": [[1]]}, "indices[0]: is out of range"),
     ({"indices": [1, 2, 3], "lengths": [[2, 2]]}, "ragged: the lengths add up to 4"),
     ({"indices": [1, 2], "lengths": [[3, -1]]}, "lengths[0][1]: must not be negative"),
     ({"indices": [1, 2, 3], "offsets": [0, 9], "tables": 1}, "offsets[2]: must not be below"),
     ({"indices": [1, 2, 3], "offsets": [0, 2, 1, 3]}, "offsets[2]: must not be below"),
     ({"indices": [1, 2, 3]}, "must hold `indices` and `lengths`"),
     ({"indices": [1], "lengths": [[1]], "more": [1]}, "more"),
     ({"user": [1, 2], "clicks": [1]}, "for the same samples; got user (2,), clicks (1,)"),
     ({"indices": ["a"], "lengths": [[1]]}, "must be whole numbers"),
     ({"indices": [1, 2, 3], "offsets": [0, 2], "tables": 0}, "tables")],
)  # fmt: skip
def test_a_faulty_file_is_refused_with_the_place(tmp_path, arrays, fault):
    np.savez(tmp_path / "x.npz", **arrays)
    with pytest.raises(InputError) as error:
        load_index_data(tmp_path / "x.npz")
    assert fault in str(error.value)
    assert "x.npz" in str(error.value)


def test_pickled_objects_are_not_loaded(tmp_path):
    torch = pytest.importorskip("torch")
    np.savez(tmp_path / "x.npz", indices=np.array([{}], dtype=object), lengths=[[1]])
    torch.save({"a": object}, tmp_path / "x.pt")
    (tmp_path / "y.pt").write_bytes(b"\x80\x04junk")
    (tmp_path / "y.parquet").write_bytes(b"junk")
    for name in ("x.npz", "x.pt", "y.pt", "y.parquet"):
        with pytest.raises(InputError, match=name) as told:
            load_index_data(tmp_path / name)
        # Torch and NumPy say how to allow it.
        assert "weights_only" not in str(told.value)
        assert "trust" not in str(told.value)
        assert "allow_pickle" not in str(told.value)


@pytest.mark.parametrize(
    ("name", "fault"),
    [("none.npz", "none.npz"), ("words.txt", "must end in one of .npz"),
     ("words", "got 'no ending'"), (".", "folder|directory|file"),
     ("empty.npz", "holds nothing"), ("short.npz", "not a readable")],
)  # fmt: skip
def test_what_is_no_file_of_indices_is_refused(tmp_path, name, fault):
    (tmp_path / "words.txt").write_text("1 2 3")
    (tmp_path / "words").write_text("1 2 3")
    (tmp_path / "empty.npz").write_bytes(b"")
    (tmp_path / "short.npz").write_bytes(b"P")
    with pytest.raises(InputError, match=fault):
        load_index_data(tmp_path / name)


def test_a_small_archive_that_unpacks_to_very_much_is_refused_unread(tmp_path, monkeypatch):
    monkeypatch.setattr(index_files, "_SMALL_BYTES", 2**16)
    np.savez_compressed(tmp_path / "x.npz", indices=np.zeros(2**17, np.int64), lengths=[[2**17]])
    with pytest.raises(InputError, match=r"x.npz: unpacks to 1 MiB, more than is read from"):
        load_index_data(tmp_path / "x.npz")


def test_a_table_takes_over_pooling_and_distribution_but_not_indices_beyond_its_rows():
    data = build_index_data("here", indices=INDICES, lengths=LENGTHS)
    table = data.describe_table(EmbeddingTable("t", 6, 4), 1)
    # Bags of 0 and 4: mean 2, deviation 2. Three of four lookups go to row 5.
    assert (table.pooling_factor, table.pooling_deviation) == (2.0, 2.0)
    assert table.popularity.hottest_share == pytest.approx(0.75)
    with pytest.raises(InputError, match="below the 5 rows"):
        data.describe_table(EmbeddingTable("t", 5, 4), 1)


def test_statistics_count_reuse_in_the_set_and_in_batches():
    data = build_index_data("here", indices=[7, 7, 8, 7], lengths=[[1, 1, 1, 1]])
    found = describe_data(data, batch_size=2)
    # Set: row 7 three times, row 8 once. Batches (7,7), (7,8), (8,7): 1/2, 1, 1.
    assert found.tables[0].distinct_rows == 2
    assert found.tables[0].set_distinct_ratio == 0.5
    assert found.tables[0].batch_distinct_ratio == pytest.approx((0.5 + 1 + 1) / 3)


def test_a_torch_file_that_says_its_bags_twice_must_say_the_same(tmp_path):
    torch = pytest.importorskip("torch")
    for offsets in ([0, 1, 3, 3, 7], [0, 2, 3, 3, 3, 7]):
        torch.save([torch.tensor(one) for one in (INDICES, offsets, LENGTHS)], tmp_path / "x.pt")
        with pytest.raises(InputError):
            load_index_data(tmp_path / "x.pt")
    torch.save((torch.tensor(INDICES), torch.tensor(LENGTHS)), tmp_path / "x.pt")
    with pytest.raises(InputError, match="must hold three tensors"):
        load_index_data(tmp_path / "x.pt")


def test_a_table_that_nobody_asks_has_statistics_too():
    data = build_index_data("here", indices=[7, 7], lengths=[[1, 1], [0, 0]])
    empty = describe_data(data, batch_size=2).tables[1]
    assert (empty.lookups, empty.largest_index, empty.distinct_rows) == (0, -1, 0)
    assert (empty.hottest_share, empty.set_distinct_ratio, empty.batch_distinct_ratio) == (0, 0, 0)


@pytest.mark.parametrize(
    ("lengths", "fault"),
    [([2, 1], "must be tables x samples"), (np.zeros((0, 2)), "at least one of each")],
)
def test_lengths_are_by_table_and_sample(lengths, fault):
    with pytest.raises(InputError, match=fault):
        build_index_data("here", indices=np.zeros(int(np.sum(lengths))), lengths=lengths)


def test_indices_are_one_long_row_of_numbers_up_to_two_to_the_53():
    with pytest.raises(InputError, match="one long row"):
        build_index_data("here", indices=[[1, 2]], lengths=[[1]])
    data = build_index_data("here", indices=[0, 2**53], lengths=[[1, 1]], names=("only",))
    assert data.names == ("only",)
    with pytest.raises(InputError, match=r"out of range.*1 such value\)"):
        build_index_data("here", indices=[0, 2**53 + 2], lengths=[[1, 1]])
    with pytest.raises(InputError, match=r"2 such values\)"):
        build_index_data("here", indices=[-1, -2], lengths=[[1, 1]])


@pytest.mark.parametrize(
    ("offsets", "tables", "lengths"),
    [([0], 1, [[7]]), ([0, 2], 2, [[2], [5]]), ([0, 2, 3, 3], 2, [[2, 1], [0, 4]]),
     ([0, 2, 3, 3, 7], 2, [[2, 1], [0, 4]]),
     # A last bag that is empty begins at the end.
     ([0, 7], 2, [[7], [0]]),
     # Of one table both layouts divide; where the last entry is the end, it is no bag.
     ([0, 3], 1, [[3, 4]]), ([0, 3, 7], 1, [[3, 4]]), ([0, 3, 7, 7], 1, [[3, 4, 0]])],
)  # fmt: skip
def test_the_end_of_the_last_bag_may_be_left_out(offsets, tables, lengths):
    found = lengths_from_offsets("here", offsets, index_count=7, table_count=tables)
    assert found.tolist() == lengths


def test_a_known_number_of_samples_tells_an_empty_last_bag_from_the_end():
    seven = {"index_count": 7, "table_count": 1}
    assert lengths_from_offsets("here", [0, 3, 7], **seven, sample_count=2).tolist() == [[3, 4]]
    assert lengths_from_offsets("here", [0, 3, 7], **seven, sample_count=3).tolist() == [[3, 4, 0]]
    assert lengths_from_offsets("here", [0], index_count=0, table_count=1).tolist() == [[0]]


@pytest.mark.parametrize("offsets", [[0, 3, 7], [0, 3, 7, 7]])
def test_a_torch_file_may_end_in_an_empty_bag_of_one_table(tmp_path, offsets):
    torch = pytest.importorskip("torch")
    parts = (INDICES, offsets, [[3, 4, 0]])
    torch.save([torch.tensor(one) for one in parts], tmp_path / "x.pt")
    assert load_index_data(tmp_path / "x.pt").lengths.tolist() == [[3, 4, 0]]


@pytest.mark.parametrize(
    ("offsets", "tables", "fault"),
    [([], 1, "offsets"), ([0, 2], 3, "not divisible"), ([1, 7], 1, r"offsets\[0\]: must be 0")],
)
def test_offsets_that_are_no_bags_are_refused(offsets, tables, fault):
    with pytest.raises(InputError, match=fault):
        lengths_from_offsets(
            "here", np.array(offsets, dtype=int), index_count=7, table_count=tables
        )


@pytest.mark.parametrize(("tables", "is_right"), [(1, True), (2**20 + 1, False), (2.0, False)])
def test_the_number_of_tables_is_one_whole_number(tmp_path, tables, is_right):
    np.savez(tmp_path / "x.npz", indices=INDICES, offsets=[0, 2])
    assert load_index_data(tmp_path / "x.npz").lengths.tolist() == [[2, 5]]
    np.savez(tmp_path / "x.npz", indices=INDICES, offsets=[0, 2], tables=tables)
    if is_right:
        assert load_index_data(tmp_path / "x.npz").lengths.shape == (1, 2)
        return
    with pytest.raises(InputError, match="tables: must be one whole number"):
        load_index_data(tmp_path / "x.npz")


def test_files_are_read_up_to_a_size_and_to_a_share_of_what_they_are(tmp_path, monkeypatch):
    np.savez_compressed(tmp_path / "x.npz", indices=np.zeros(4000, int), lengths=[[4000]])
    columns = {"u": list(range(100)), "v": list(range(100))}
    pyarrow.parquet.write_table(pyarrow.table(columns), tmp_path / "y.parquet")
    with zipfile.ZipFile(tmp_path / "x.npz") as packed:
        unpacked = sum(entry.file_size for entry in packed.infolist())
    # A cell of Parquet is counted with the eight bytes that it becomes.
    for name, size in (("x.npz", unpacked), ("y.parquet", 8 * 200)):
        for limits in ({"MAX_FILE_BYTES": size}, {"_SMALL_BYTES": size, "_MOST_RATIO": 0}):
            for limit, value in limits.items():
                monkeypatch.setattr(index_files, limit, value)
            assert load_index_data(tmp_path / name).sample_count
            lowered = next(iter(limits))
            monkeypatch.setattr(index_files, lowered, size - 1)
            with pytest.raises(InputError, match="unpacks to"):
                load_index_data(tmp_path / name)
            monkeypatch.undo()
    monkeypatch.setattr(index_files, "_SMALL_BYTES", 0)
    monkeypatch.setattr(index_files, "_MOST_RATIO", 2)
    with pytest.raises(InputError, match="unpacks to"):
        load_index_data(tmp_path / "x.npz")


def test_columns_of_a_parquet_file_are_whole_numbers_or_lists_of_them(tmp_path):
    path = tmp_path / "x.parquet"

    def load(column):
        pyarrow.parquet.write_table(pyarrow.table({"u": column}), path)
        return load_index_data(path)

    assert load([4, 5]).lengths.tolist() == [[1, 1]]
    assert load(pyarrow.array([4.0, 5.0])).indices.tolist() == [4, 5]
    large = pyarrow.array([[4], [5, 6]], pyarrow.large_list(pyarrow.int64()))
    assert load(large).lengths.tolist() == [[1, 2]]
    for wrong in ([4, None], [["a"]], ["a"], [[4, None]]):
        with pytest.raises(InputError, match="column 'u'"):
            load(wrong)
    pyarrow.parquet.write_table(pyarrow.table({}), path)
    with pytest.raises(InputError):
        load_index_data(path)
