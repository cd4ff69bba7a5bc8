"""`dtopk ingest`."""

import numpy as np
import pytest

from dtopk_storage import open_store
from dtopk_storage.chunked import ChunkedArray


@pytest.fixture
def source(tmp_path):
    rng = np.random.default_rng(0)
    X = rng.integers(0, 16, (40, 3)).astype(np.uint8)
    np.savez(tmp_path / "a.npz", X=X, y=rng.choice(["x", "y"], 40))
    return tmp_path / "a.npz"


def test_ingest_says_what_it_wrote(call, source, tmp_path):
    result = call("ingest", source, tmp_path / "s", "--split", "val=0.1", "--split", "test=0.2")
    assert result.status == 0
    assert result.out == ""
    assert f"wrote {tmp_path / 's'}\n" in result.err
    assert "40 rows of 3 features (float32), 2 classes; train 28, val 4, test 8\n" in result.err


def test_ingest_answers_one_object(call_json, source, tmp_path):
    fields = call_json("ingest", source, tmp_path / "s")
    assert fields["kind"] == "store"
    assert fields["n_samples"] == 40
    assert fields["provenance"]["source"] == str(source)


def test_ingest_divides_and_splits_by_row(call, source, tmp_path):
    options = ["--divide-by", "15", "--split-rows", "train=0:30", "--split-rows", "test=30:40"]
    assert call("ingest", source, tmp_path / "s", *options).status == 0
    store = open_store(tmp_path / "s")
    expected = (np.load(source)["X"] / 15).astype(np.float32)
    np.testing.assert_array_equal(store.read_features(0, 40), expected)
    assert store.splits == {"train": ((0, 30),), "test": ((30, 40),)}


def test_ingest_passes_every_option_on(call, tmp_path):
    (tmp_path / "t.csv").write_text("7;0.5;a;2;p\n" * 4 + "8;1.5;b;1;q\n" * 4)
    np.save(tmp_path / "parts.npy", np.repeat(["train", "val"], 4)[[0, 4] * 4])
    result = call(
        "ingest", tmp_path / "t.csv", tmp_path / "s",
        "--no-header", "--delimiter", ";", "--labels-key", "2", "--skip-column", "-1",
        "--weights-key", "3", "--split-names", tmp_path / "parts.npy", "--shuffle",
        "--seed", "3", "--dtype", "float16", "--compression", "zstd", "--chunk-mib", "0.00001",
    )  # fmt: skip
    assert result.status == 0, result.err
    store = open_store(tmp_path / "s")
    order = store.read_row_id(0, 8)
    table = np.array([[7, 0.5]] * 4 + [[8, 1.5]] * 4)
    np.testing.assert_array_equal(store.read_features(0, 8), table[order])
    np.testing.assert_array_equal(store.read_sample_weight(0, 8), np.repeat([2, 1], 4)[order])
    assert (
        store.classes[store.read_labels(0, 8)].tolist() == np.repeat(["a", "b"], 4)[order].tolist()
    )
    assert store.split_size("val") == 4
    assert (store.dtype.name, store.compression, store.chunk_rows) == ("float16", "zstd", 2)
    assert store.provenance["seed"] == 3


def test_ingest_takes_keys_and_the_base_of_indices(call, tmp_path):
    np.savez(tmp_path / "a.npz", train=np.eye(4), target=[0, 1, 0, 1])
    keys = ["--features-key", "train", "--labels-key", "target"]
    assert call("ingest", tmp_path / "a.npz", tmp_path / "s", *keys).status == 0
    (tmp_path / "news").write_text("a 1:1\n".replace("a", "3") + "5 2:4\n")
    options = ["--format", "svmlight", "--n-features", "3", "--index-base", "0"]
    assert call("ingest", tmp_path / "news", tmp_path / "n", *options).status == 0
    assert open_store(tmp_path / "n").read_features(0, 2).tolist() == [[0, 1, 0], [0, 0, 4]]


def test_info_tells_what_the_source_of_a_source_was(call, source, tmp_path):
    assert call("ingest", source, tmp_path / "s", "--divide-by", "15").status == 0
    assert call("ingest", tmp_path / "s", tmp_path / "t", "--dtype", "float16").status == 0
    out = call("info", tmp_path / "t").out
    own, before = out.split("which was made from\n")
    assert f"source           {tmp_path / 's'}\n" in own
    assert f"source           {source}\n" in before
    assert "divide by        15.0\n" in before


def test_ingest_replaces_a_store_only_when_asked(call, source, tmp_path):
    assert call("ingest", source, tmp_path / "s").status == 0
    result = call("ingest", source, tmp_path / "s", "--dtype", "float64")
    assert result.status == 2
    assert (
        "exists already. Choose another path, or replace it on purpose with --overwrite."
        in result.err
    )
    assert call("ingest", source, tmp_path / "s", "--dtype", "float64", "--overwrite").status == 0
    assert open_store(tmp_path / "s").dtype == np.float64


def test_interrupted_ingest_says_how_to_go_on(call, source, tmp_path, monkeypatch):
    def interrupt(self, chunk, values, **options):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(ChunkedArray, "write_chunk", interrupt)
        result = call("ingest", source, tmp_path / "s")
    assert result.status == 130
    assert "is not made yet. Run the same command again to go on from here." in result.err
    assert call("ingest", source, tmp_path / "s").status == 0


def test_ingest_finds_weights_and_split_names_by_their_usual_names(call, source, tmp_path):
    np.savez(tmp_path / "w.npz", y=np.zeros(40), weight=np.arange(40.0))
    np.savez(tmp_path / "n.npz", y=np.zeros(40), split=np.repeat(["train", "val"], 20))
    options = ["--weights", tmp_path / "w.npz", "--split-names", tmp_path / "n.npz"]
    result = call("ingest", source, tmp_path / "s", *options)
    assert result.status == 0, result.err
    store = open_store(tmp_path / "s")
    np.testing.assert_array_equal(store.read_sample_weight(0, 40), np.arange(40.0))
    assert store.split_size("val") == 20


def test_ingest_of_a_table_says_which_columns_are_features(call, call_json, tmp_path):
    rows = "".join(f"{row},{row % 3},{row % 2}\n" for row in range(20))
    (tmp_path / "t.csv").write_text("id,a,y\n" + rows)
    result = call("ingest", tmp_path / "t.csv", tmp_path / "s")
    assert result.status == 0
    assert "warning: column 'id' of " in result.err
    assert "with skip_columns (--skip-column).\n" in result.err
    assert "2 columns taken as features: 'id' to 'a'\n" in result.err
    result = call("ingest", tmp_path / "t.csv", tmp_path / "t", "--skip-column", "id")
    assert "warning" not in result.err
    assert "1 column taken as features: 'a'\n" in result.err
    assert call_json("info", tmp_path / "s")["provenance"]["first_feature"] == "id"


def test_ingest_notes_classes_that_training_cannot_learn(call, tmp_path):
    np.savez(tmp_path / "a.npz", X=np.eye(6), y=list("aabbcd"))
    result = call("ingest", tmp_path / "a.npz", tmp_path / "s", "--split-rows", "test=4:6")
    assert result.status == 0
    assert "note: split 'train' has no row of 2 classes: 'c', 'd'. " in result.err
    result = call("ingest", tmp_path / "a.npz", tmp_path / "t")
    assert "note:" not in result.err


def test_ingest_names_the_option_for_what_it_cannot_tell(call, source, tmp_path):
    unknown = source.rename(tmp_path / "a")
    result = call("ingest", unknown, tmp_path / "s")
    assert result.status == 2
    assert result.err.endswith(", got ''. Name it with --format.\n")
    np.save(tmp_path / "X.npy", np.ones((4, 2)))
    result = call("ingest", tmp_path / "X.npy", tmp_path / "s")
    assert result.status == 2
    assert result.err.endswith("holds one array, got none. Name that file with --labels.\n")
    (tmp_path / "t.csv").write_text("name,a,y\nx,1,0\nz,2,1\n")
    result = call("ingest", tmp_path / "t.csv", tmp_path / "s")
    assert result.status == 2
    assert "Leave the column out with --skip-column if it is none.\n" in result.err


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (["--split", "val"], "split must be NAME=FRACTION such as val=0.1, got 'val'"),
        (["--split", "=0.1"], "split must be NAME=FRACTION such as val=0.1, got '=0.1'"),
        (["--split-rows", "val=3"], "rows must be NAME=START:STOP such as val=0:500, got 'val=3'"),
        (["--split", "val=2"], "fraction of split 'val' must be above 0 and at most 1, got 2.0"),
        (["--dtype", "bfloat16"], "'bfloat16' is not one of 'float16', 'float32', 'float64'"),
        (["--format", "text"], "'text' is not one of 'npy', "),
        (["--labels-key", "z"], "got only 'X', 'y'. Name the right one with --labels-key.\n"),
        (["--features-key", "z"], "got only 'X', 'y'. Name the right one with --features-key.\n"),
        (["--labels", "z.npy"], "file of labels must be an existing file or folder, got 'z.npy'"),
        (["--labels", "z.npy"], "Correct --labels.\n"),
        (["--divide-by", "0"], "'--divide-by': it must be finite and not 0, got 0.0."),
        (["--divide-by", "1e-5", "--dtype", "float16"], "a wider --dtype, or --divide-by.\n"),
        (["--chunk-mib", "0"], "'--chunk-mib': it must be finite and at least one byte, got 0.0"),
        (["--chunk-mib", "inf"], "'--chunk-mib': it must be finite and at least one byte"),
        (["--seed", "-1"], "'--seed': -1 is not in the range x>=0"),
    ],
)
def test_bad_options_are_one_line_and_status_2(call, source, tmp_path, options, message):
    result = call("ingest", source, tmp_path / "s", *options)
    assert result.status == 2
    assert message in result.err
    assert not (tmp_path / "s").exists()
    assert not (tmp_path / "s.partial").exists()
