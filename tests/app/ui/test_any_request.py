"""Any request of a browser: an answer of the page, or its error."""

import warnings
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from starlette.applications import Starlette

from commonweal.app.ui.server import application
from commonweal.jobs.rounds import run
from fuzzing import fuzz
from run_helpers import federation, task


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A finished run of three rounds."""
    folder = tmp_path_factory.mktemp("whole") / "run"
    list(run(task(), federation(), rounds=3, rule="aaggff-s", out=folder))
    return folder


@pytest.fixture(scope="module")
def page(whole: Path) -> Starlette:
    return application(whole.parent)


@fuzz
@given(
    st.sampled_from(["home", "verdict", "compare", "client", "run", "figure", "table", "report"]),
    st.dictionaries(
        st.sampled_from(["id", "name", "what", "form", "federation", "words", "file", "title"]),
        st.sampled_from(["run", "c1", "weights", "svg", "../run", "run/.", "\x00", "=1"])
        | st.text(max_size=8).filter(lambda text: text.isprintable()),
    ),
)
def test_the_page_answers_any_request(
    page: Starlette, what: str, parameters: dict[str, str]
) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from starlette.testclient import TestClient

    client = TestClient(page, base_url="http://127.0.0.1")
    answer = client.get(f"/api/{what}", params=parameters)
    assert answer.status_code in (200, 404)
    if answer.status_code == 404:
        problem = answer.json()["problem"]
        assert "this cannot be read" not in problem, problem
