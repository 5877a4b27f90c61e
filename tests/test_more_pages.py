"""The pages Reference and Benchmarks without a browser."""

from pathlib import Path
from urllib.parse import parse_qsl

from streamlit.testing.v1 import AppTest

from dmviz.catalog import entry_class
from dmviz.ui import reference

ROOT = Path(__file__).parent.parent


def opened(path: str, link: str = "") -> AppTest:
    app = AppTest.from_file(str(ROOT / "app.py"), default_timeout=90)
    app.run()
    app.switch_page(path)
    for key, value in parse_qsl(link, keep_blank_values=True):
        app.query_params[key] = value
    return app.run()


def words(app: AppTest) -> str:
    return "\n".join(element.value for element in [*app.markdown, *app.caption, *app.subheader, *app.header])


def address(app: AppTest) -> str:
    """The entry in the address bar."""
    found = app.query_params["entry"]
    return found if isinstance(found, str) else found[0]


def test_reference_lists_every_entry_and_a_table_of_all() -> None:
    app = opened("pages/reference.py")
    assert not app.exception
    assert {button.label for button in app.button} >= {card.title for card in reference.cards()}
    (table,) = app.dataframe
    assert len(table.value) == len(reference.cards())


def test_a_link_opens_one_entry_with_all_there_is_to_know() -> None:
    app = opened("pages/reference.py", "entry=losses.mmd")
    assert not app.exception and not app.warning
    said = words(app)
    assert "Link of this entry: `?entry=losses.mmd`" in said
    for part in ("$$", "| bandwidth | 0.001 to 1000 |", "Laws, each held by a test", "* Cost:", "**Sources**"):
        assert part in said
    code = [block.value for block in app.code]
    assert any("class Mmd" in block for block in code) and any("@article{gretton2012kernel" in block for block in code)
    assert len(app.get("download_button")) == 2
    assert app.get("page_link")[0].proto.query_string == "loss=mmd"


def test_each_kind_of_entry_opens_by_a_click_and_changes_the_address() -> None:
    app = opened("pages/reference.py")
    for key in ("losses.mauve", "losses.ksd", "flows.svgd", "shapes.two_moons", "datasets.file", "projections.pca"):
        app.button(key=f"reference.{key}").click().run()
        assert not app.exception, key
        assert address(app) == key
        assert entry_class(*key.split(".")).title in [header.value for header in app.header]
    app.button(key="reference.all").click().run()
    assert "entry" not in app.query_params and len(app.dataframe) == 1


def test_filters_shorten_the_list_and_nothing_found_is_a_sentence() -> None:
    app = opened("pages/reference.py")
    app.multiselect(key="reference.family").set_value(["kernels"]).run()
    kernels = {card.title for card in reference.cards() if card.family == "kernels"}
    assert {button.label for button in app.button if button.key != "reference.all"} == kernels
    app.text_input(key="reference.search").set_value("no such word").run()
    assert not app.exception and "Nothing matches" in app.info[0].value


def test_an_entry_that_does_not_exist_is_a_sentence_with_those_that_are_near() -> None:
    app = opened("pages/reference.py", "entry=losses.mdd")
    assert not app.exception
    assert "no entry named 'losses.mdd'" in app.warning[0].value and "losses.mmd" in app.warning[0].value
    assert len(app.dataframe) == 1


def test_what_was_read_last_is_there_again_after_another_page() -> None:
    app = opened("pages/reference.py", "entry=flows.svgd")
    app.query_params.clear()
    app.switch_page("pages/home.py").run()
    app.switch_page("pages/reference.py").run()
    assert not app.exception and address(app) == "flows.svgd"
