"""The player's files: found by Streamlit, complete, and without a word from another machine."""

import importlib
import re
import tomllib
from pathlib import Path

import pytest
from streamlit.components.v2.component_manager import BidiComponentManager
from streamlit.components.v2.manifest_scanner import ComponentConfig, ComponentManifest
from streamlit.testing.v1 import AppTest

import dmviz
from dmviz.ui import player as module
from dmviz.ui.player import wire

FILES = sorted(module.FRONTEND.glob("*.js"))


def test_the_manifest_in_the_package_names_the_folder_of_the_player():
    package = Path(dmviz.__file__).parent
    manifest = tomllib.loads((package / "pyproject.toml").read_text())
    (component,) = manifest["tool"]["streamlit"]["component"]["components"]
    assert f"{manifest['project']['name']}.{component['name']}" == module.NAME
    assert (package / component["asset_dir"]).resolve() == module.FRONTEND.resolve()


@pytest.mark.parametrize("found", [True, False], ids=["found by Streamlit", "declared by us"])
def test_streamlit_knows_where_the_files_are(monkeypatch, found):
    manager = BidiComponentManager()
    source = importlib.import_module("streamlit.components.v2.get_bidi_component_manager")
    monkeypatch.setattr(source, "get_bidi_component_manager", lambda: manager)
    if found:
        manager.register_from_manifest(
            ComponentManifest("dmviz", "1", [ComponentConfig("player", "ui/player/frontend")]),
            Path(dmviz.__file__).parent,
        )
    module._declare()
    root = manager.get_component_asset_root(module.NAME)
    assert root is not None and (root / "index.js").is_file() and root == module.FRONTEND.resolve()


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.name)
def test_every_import_of_the_player_is_a_file_beside_it(file):
    source = file.read_text()
    imports = re.findall(r'from "([^"]+)"', source)
    assert all(name.startswith("./") and (file.parent / name).is_file() for name in imports)
    for name in imports:  # and offers what is asked of it
        wanted = re.search(rf'import \{{([^}}]*)\}} from "{re.escape(name)}"', source)
        other = (file.parent / name).read_text()
        for word in (wanted.group(1) if wanted else "").split(","):
            if word.strip():
                assert re.search(rf"export (async )?(function|class|const) {word.strip()}\b", other), (name, word)


@pytest.mark.parametrize("file", [*FILES, module.FRONTEND / "style.css"], ids=lambda file: file.name)
def test_no_file_of_the_player_names_another_machine(file):
    assert not re.search(r"https?:|//[a-z0-9-]+\.[a-z]{2,}/|@import|url\((?!#)", file.read_text())


def test_plotly_is_copied_once_and_whole():
    copy = module.vendored()
    before = copy.stat()
    assert module.vendored() == copy
    assert copy.stat().st_mtime_ns == before.st_mtime_ns
    import plotly

    assert copy.read_bytes() == (Path(plotly.__file__).parent / "package_data" / "plotly.min.js").read_bytes()


def test_an_older_copy_is_replaced(monkeypatch, tmp_path):
    monkeypatch.setattr(module, "FRONTEND", tmp_path)
    (tmp_path / "vendor").mkdir()
    (tmp_path / "vendor" / "plotly.min.js").write_text("an older one")
    assert module.vendored().stat().st_size > 1_000_000
    assert [path.name for path in (tmp_path / "vendor").iterdir()] == ["plotly.min.js"]


def test_a_place_that_cannot_be_written_gives_one_sentence(monkeypatch, tmp_path):
    (tmp_path / "vendor").write_text("a file where the folder should be")
    monkeypatch.setattr(module, "FRONTEND", tmp_path)
    with pytest.raises(RuntimeError, match=r"cannot write there .*Make that folder writable"):
        module.vendored()


def app():
    import streamlit as st

    from dmviz.run import from_link, simulate, start
    from dmviz.ui.player import player
    from dmviz.ui.stage import Stage

    def factory():
        begun = start(from_link("n=20&m=20&loss=energy_distance&referees="))
        return begun.scene, simulate(begun)

    stage = st.session_state.setdefault("stage", Stage())
    stage.load("a", factory)
    stage.wait(3, 60.0)

    @st.fragment
    def live():
        events = player("player", stage, title="a title", metrics={"loss": ("Energy", "length")})
        st.text(f"{events}")

    live()


def test_the_mounted_player_carries_a_message_the_browser_can_read():
    at = AppTest.from_function(app, default_timeout=30).run()
    assert not at.exception
    proto = at.get("bidi_component")[0].proto
    settings, chunk = wire.opened(proto.bytes)
    header, arrays = wire.decode(chunk)
    assert settings["key"] == "player" and settings["title"] == "a title"
    assert settings["metrics"] == {"loss": ["Energy", "length"]}
    assert header["count"] >= 3 and arrays["x"].shape[1:] == (20, 2) and header["scene"]["dims"] == 2
    assert proto.js_source_path.endswith("index.js") and proto.css_source_path.endswith("style.css")
    assert len(proto.bytes) < 50_000  # the scripts are not part of it
    assert at.text[0].value == "Events(pos=0, playing=False, drawn=None, new_seed=False)"
    at.session_state["stage"].close()


def test_a_second_run_of_the_script_sends_the_same_frames():
    at = AppTest.from_function(app, default_timeout=30).run()
    first = wire.decode(wire.opened(at.get("bidi_component")[0].proto.bytes)[1])
    again = wire.decode(wire.opened(at.run().get("bidi_component")[0].proto.bytes)[1])
    assert first[0]["gen"] == again[0]["gen"]
    assert (first[1]["x"] == again[1]["x"]).all()
    at.session_state["stage"].close()
