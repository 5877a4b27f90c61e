"""Datasets and own files: the right numbers, and a note for everything that was changed or left out."""

import io
import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from dmviz.catalog import entry_class, menu
from dmviz.cloud import seeded
from dmviz.datasets.digits import Digits
from dmviz.datasets.file import File, describe
from dmviz.datasets.iris import Iris
from dmviz.datasets.wine import Wine
from dmviz.items import FileProblem, Items, coded

NAMES = menu("datasets")


def loaded(entry: object, limit: int = 10_000, seed: int = 0) -> Items:
    return entry.load(limit, seeded(seed))  # type: ignore[attr-defined]


def of_file(tmp_path: Path, data: bytes | str, name: str = "points.csv", **chosen: object) -> Items:
    path = tmp_path / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return loaded(File(path=str(path), **{"standardise": False, **chosen}))  # type: ignore[arg-type]


# ---- every data set


@pytest.mark.parametrize("name", NAMES)
def test_rows_come_as_a_cloud_the_same_for_the_same_seed(name: str) -> None:
    entry = entry_class("datasets", name)()
    items, again, other = loaded(entry, 40), loaded(entry, 40), loaded(entry, 40, seed=1)
    assert len(items) == 40
    assert items.x.dtype == torch.float32
    assert items.x.isfinite().all()
    assert torch.equal(items.x, again.x)
    assert not torch.equal(items.ids, other.ids)
    assert items.cloud().label is items.label
    assert any(note.startswith("40 of ") for note in items.notes)


@pytest.mark.parametrize("name", NAMES)
def test_a_row_keeps_its_numbers_and_its_name_when_others_are_left_out(name: str) -> None:
    entry = entry_class("datasets", name)()
    every, some = loaded(entry), loaded(entry, 20)
    assert torch.equal(every.ids, torch.arange(1, len(every) + 1))
    assert torch.equal(every.x[some.ids - 1], some.x)


@pytest.mark.parametrize(("name", "n", "dim", "classes"), [
    ("digits", 1797, 64, 10), ("iris", 150, 4, 3), ("wine", 178, 13, 3), ("breast_cancer", 569, 30, 2),
])  # fmt: skip
def test_the_classic_tables_have_their_size(name: str, n: int, dim: int, classes: int) -> None:
    items = loaded(entry_class("datasets", name)())
    assert items.x.shape == (n, dim)
    assert len(items.label_names) == classes
    assert items.label is not None
    assert set(items.label.tolist()) == set(range(classes))


@pytest.mark.parametrize("name", ["iris", "wine", "breast_cancer"])
def test_standardised_columns_have_mean_0_and_deviation_1(name: str) -> None:
    x = loaded(entry_class("datasets", name)()).x.double()
    assert x.mean(0).abs().max() < 1e-6
    assert (x.std(0, correction=0) - 1).abs().max() < 1e-6


def test_digits_can_be_read() -> None:
    items = loaded(Digits())
    first = items.x[0].reshape(8, 8)  # a zero: ink around an empty middle
    assert items.x.min() == 0
    assert items.x.max() == 1
    assert first[3:5, 3:5].max() < 0.5 < first[4, 1:7].max()


def test_digits_through_principal_components_keep_the_distances_that_matter() -> None:
    pixels, turned = loaded(Digits(classes="3,5")), loaded(Digits(classes="3,5", components=64 - 1))
    exact = torch.cdist(pixels.x[:50].double(), pixels.x[:50].double())
    assert torch.allclose(torch.cdist(turned.x[:50].double(), turned.x[:50].double()), exact, atol=1e-4)
    few = loaded(Digits(components=2)).x.double()
    whole = loaded(Digits()).x.double()
    size = torch.linalg.svdvals(whole - whole.mean(0))[:2]
    assert torch.allclose(few.norm(dim=0), size, rtol=1e-5)
    assert (few[:, 0] @ few[:, 1]).abs() < 1e-3 * size.prod()


def test_classes_are_chosen_by_name_and_their_codes_have_no_gap() -> None:
    items = loaded(Iris(classes="virginica, setosa"))
    assert items.label_names == ("setosa", "virginica")
    assert items.label is not None
    assert items.label.bincount().tolist() == [50, 50]
    with pytest.raises(ValueError, match="Iris: no class 'rose'; there are setosa, versicolor, virginica"):
        loaded(Iris(classes="rose"))


def test_a_part_of_the_rows_keeps_the_classes_in_proportion() -> None:
    items = loaded(Wine(), 60)
    share = items.label.bincount().double() / 60  # type: ignore[union-attr]
    exact = torch.tensor([59, 71, 48]) / 178
    assert (share - exact).abs().max() <= 1 / 60


def test_importing_the_package_loads_no_table_library() -> None:
    code = (
        "import sys, dmviz.datasets.file, dmviz.datasets.digits, dmviz.items\n"
        "assert not {'pandas', 'pyarrow', 'sklearn'} & set(sys.modules), 'slow import'"
    )
    subprocess.run([sys.executable, "-c", code], check=True, cwd=Path(__file__).parent.parent)


# ---- own files


TABLE = "x,y,kind\n0,1.5,a\n1,2.5,b\n2,3.5,a\n"


def test_every_kind_of_file_gives_the_same_rows(tmp_path: Path) -> None:
    numbers = [[0.0, 1.5], [1.0, 2.5], [2.0, 3.5]]
    records = [{"x": a, "y": b, "kind": k} for (a, b), k in zip(numbers, "aba", strict=True)]
    array, kinds = np.array(numbers), np.array(list("aba"))
    npy, npz, parquet = io.BytesIO(), io.BytesIO(), io.BytesIO()
    np.save(npy, array)
    np.savez(npz, x=array, kind=kinds)
    pq.write_table(pa.Table.from_pylist(records), parquet)
    files = {
        "a.csv": TABLE.encode(),
        "a.tsv": TABLE.replace(",", "\t").encode(),
        "semi.csv": TABLE.replace(",", ";").encode(),
        "comma.csv": TABLE.replace(",", ";").replace(".", ",").encode(),
        "pipe.txt": TABLE.replace(",", "|").encode(),
        "a.jsonl": "\n".join(map(json.dumps, records)).encode(),
        "a.json": json.dumps(records).encode(),
        "columns.json": json.dumps({k: [r[k] for r in records] for k in ("x", "y", "kind")}).encode(),
        "a.npz": npz.getvalue(),
        "a.parquet": parquet.getvalue(),
        "wide.csv": TABLE.encode("utf-16"),
        "wrong.npy": TABLE.encode(),
    }
    for name, data in files.items():
        items = of_file(tmp_path, data, name, label="kind")
        assert items.x.tolist() == numbers, name
        assert items.label_names == ("a", "b"), name
        assert items.label is not None
        assert items.label.tolist() == [0, 1, 0], name
    assert of_file(tmp_path, npy.getvalue(), "a.npy").x.tolist() == numbers


def test_columns_are_chosen_by_name_order_and_pattern(tmp_path: Path) -> None:
    text = "e0,e1,e2,w\n1,2,3,4\n5,6,7,9\n"
    assert of_file(tmp_path, text, columns="w, e1").columns == ("w", "e1")
    assert of_file(tmp_path, text, columns="e*").x.tolist() == [[1, 2, 3], [5, 6, 7]]
    assert of_file(tmp_path, text, weight="w").columns == ("e0", "e1", "e2")


def test_every_name_that_a_file_shows_can_be_chosen(tmp_path: Path) -> None:
    names = ["a,b", "v[1]", "x" * 70, "tab\there", "straße", "*", "a b", " edge ", "x" * 69 + "y"]
    table = pa.table({name: [float(i), i + 1.0] for i, name in enumerate(names)})
    pq.write_table(table, tmp_path / "names.parquet")
    table.to_pandas().to_csv(tmp_path / "names.csv", index=False)
    for path in map(str, (tmp_path / "names.parquet", tmp_path / "names.csv")):
        shown = describe(path).columns
        assert len(shown) == len(names)
        for i, name in enumerate(shown):
            items = loaded(File(path=path, columns=name, standardise=False))
            assert items.x[:, :1].flatten().tolist() == [i, i + 1], name


def test_one_column_of_lists_becomes_columns(tmp_path: Path) -> None:
    lists = 'id,v\nq,"[0.5, 1, 2]"\nr,"[3 4 5]"\ns,\n'
    items = of_file(tmp_path, lists)
    assert items.x.tolist() == [[0.5, 1, 2], [3, 4, 5]]
    assert items.columns == ("v0", "v1", "v2")
    assert items.ids.tolist() == [1, 2]
    assert "1 row left out: NaN or empty in 'v0' (row 3)" in items.notes
    assert of_file(tmp_path, lists, columns="v2,v0").x.tolist() == [[2, 0.5], [5, 3]]


def test_a_parquet_gives_one_part_of_a_list_column(tmp_path: Path) -> None:
    path = tmp_path / "e.parquet"
    pq.write_table(pa.table({"embedding": [[1.0, 2.0], [3.0, 4.0]], "other": ["a", "b"]}), path)
    items = loaded(File(path=str(path), columns="embedding_1", standardise=False))
    assert items.x.tolist() == [[2], [4]]


def test_rows_without_a_number_are_counted_named_and_keep_the_others_ids(tmp_path: Path) -> None:
    text = "x,y\n" + "".join(f"{'nan' if i % 4 == 1 else i},{'inf' if i == 6 else i * i}\n" for i in range(40))
    items = of_file(tmp_path, text)
    assert "10 rows left out: NaN or empty in 'x' (rows 2, 6, 10, 14, 18, 22, 26, 30, ...)" in items.notes
    assert "1 row left out: infinite in 'y' (row 7)" in items.notes
    assert len(items) == 29
    assert items.x[:, 0].tolist() == [float(i - 1) for i in items.ids.tolist()]


def test_labels_of_any_type_have_names_in_order_and_empty_ones_a_class(tmp_path: Path) -> None:
    items = of_file(tmp_path, "x,k\n1,10\n2,9\n3,\n4,10\n", label="k")
    assert items.label_names == ("9", "10", "(none)")
    assert items.label is not None
    assert items.label.tolist() == [1, 0, 2, 1]
    words = of_file(tmp_path, "x,k\n1,日本\n2,हिन्दी\n3,🙂\n4,\n", label="k")
    assert words.label_names == ("हिन्दी", "日本", "🙂", "(none)")
    codes, names = coded([True, None, 2, "b", 1.5, float("nan")])
    assert names == ("1.5", "2", "True", "b", "(none)")
    assert codes.tolist() == [2, 4, 1, 3, 0, 4]


def test_three_hundred_classes_keep_their_names(tmp_path: Path) -> None:
    items = of_file(tmp_path, "x,k\n" + "".join(f"{i},c{i:03}\n" for i in range(300)), label="k")
    assert items.label_names == tuple(f"c{i:03}" for i in range(300))


def test_weights_sum_to_one_and_rows_without_one_are_left_out(tmp_path: Path) -> None:
    items = of_file(tmp_path, "x,w\n1,1\n2,3\n3,\n4,0\n", weight="w")
    assert items.weight is not None
    assert items.weight.tolist() == [0.25, 0.75, 0]
    assert "1 row left out: NaN or empty in 'w' (row 3)" in items.notes
    huge = of_file(tmp_path, "x,w\n1,1e308\n2,1e308\n", weight="w")
    assert huge.weight is not None
    assert huge.weight.tolist() == [0.5, 0.5]


def test_a_part_of_the_rows_takes_those_with_weight_first(tmp_path: Path) -> None:
    path = tmp_path / "points.csv"
    path.write_text("x,w\n" + "".join(f"{i},{int(i % 10 == 0)}\n" for i in range(100)))
    for limit in (2, 10, 30):
        items = loaded(File(path=str(path), weight="w"), limit)
        assert len(items) == limit
        assert items.weight is not None
        assert (items.weight > 0).sum() == min(limit, 10)


def test_what_was_cast_renamed_or_guessed_is_noted(tmp_path: Path) -> None:
    cast = of_file(tmp_path, '{"a": "1.5", "b": true}\n{"a": "2", "b": false}\n', "a.jsonl")
    assert cast.x.tolist() == [[1.5, 1], [2, 0]]
    assert "column 'a' was text and is cast to numbers" in cast.notes
    assert "column 'b' was true or false and is cast to numbers" in cast.notes
    twice = of_file(tmp_path, "x,x\n1,2\n3,4\n")
    assert twice.columns == ("x", "x (2)")
    assert "a second column 'x' is named 'x (2)'" in twice.notes
    assert "no header: columns are named x0 to x1" in of_file(tmp_path, "1,2\n3,5\n").notes
    numbered = of_file(tmp_path, ",x\n0,5\n1,7\n2,6\n")
    assert numbered.columns == ("x",)
    assert "column 'column 1' left out: it only numbers the rows" in numbered.notes
    assert any("content" in note for note in of_file(tmp_path, TABLE, "a.parquet").notes)
    stack = io.BytesIO()
    np.save(stack, np.arange(12.0).reshape(2, 2, 3))
    assert "each 2 x 3 entry of 'x' is taken as 6 columns" in of_file(tmp_path, stack.getvalue(), "a.npy").notes


def test_huge_numbers_need_standardising(tmp_path: Path) -> None:
    text = "x,y\n1e300,1\n-1e300,2\n1e300,4\n"
    with pytest.raises(FileProblem, match=r"points.csv: column 'x' holds numbers as large as 1e\+300.*standardise"):
        of_file(tmp_path, text)
    x = of_file(tmp_path, text, standardise=True).x.double()
    assert x.mean(0).abs().max() < 1e-6
    assert (x.std(0, correction=0) - 1).abs().max() < 1e-6
    tiny = of_file(tmp_path, "x\n1e-300\n2e-300\n", standardise=True)
    assert tiny.x.flatten().tolist() == [-1, 1]


def test_digits_lost_to_float32_are_noted(tmp_path: Path) -> None:
    items = of_file(tmp_path, "t\n1700000001\n1700000002\n1700000003\n")
    assert any("standardise to keep digits" in note for note in items.notes)
    exact = of_file(tmp_path, "t\n1700000001\n1700000002\n1700000003\n", standardise=True)
    assert exact.x.flatten().tolist() == pytest.approx([-(1.5**0.5), 0, 1.5**0.5], abs=1e-6)


def test_a_constant_column_is_noted_and_shown_as_zero(tmp_path: Path) -> None:
    items = of_file(tmp_path, "x,y\n1,5\n2,5\n", standardise=True)
    assert items.x[:, 1].tolist() == [0, 0]
    assert "column 'y' is the same in every row, and shown as 0" in items.notes


def test_an_edited_file_is_read_again(tmp_path: Path) -> None:
    assert of_file(tmp_path, "x\n1\n2\n").x.flatten().tolist() == [1, 2]
    assert of_file(tmp_path, "x\n3\n4\n5\n").x.flatten().tolist() == [3, 4, 5]


def test_large_files_are_read_in_reasonable_time(tmp_path: Path) -> None:
    x = torch.randn(100_000, 8, generator=seeded(0)).numpy()
    np.save(tmp_path / "a.npy", x)
    items = loaded(File(path=str(tmp_path / "a.npy"), standardise=False), 500)
    assert np.array_equal(items.x.numpy(), x[items.ids.numpy() - 1])


def test_the_table_keeps_the_other_columns_of_the_rows_used(tmp_path: Path) -> None:
    items = of_file(tmp_path, "x,name\n1,a\nnan,b\n3,c\n")
    assert items.table.column("name").to_pylist() == ["a", "c"]
