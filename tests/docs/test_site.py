"""The site is built with warnings as errors, shows what the code offers, and no link is broken."""

import ast
import json
import re
from pathlib import Path

import pytest
import typer

import commonweal
from cases import cases
from commonweal import cli
from commonweal.config import catalog
from commonweal.config.catalog import KINDS
from commonweal.report import listing

pytest.importorskip("zensical", reason="the site needs pip install 'commonweal[docs]'")

import build_site
import site_reference

ROOT = Path(__file__).parents[2]
TEXTS = [*sorted(ROOT.glob("*.md")), *sorted((ROOT / "docs").rglob("*.md"))]
TEXTS += [*sorted((ROOT / "examples").rglob("*.md")), ROOT / "llms.txt"]
LINK = re.compile(r"!?\[[^\]]*\]\(([^)\s]+)\)")


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site") / "site"
    build_site.build(folder, run_notebooks=False)
    return folder


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("reference")
    site_reference.write(folder)
    return folder


def test_every_part_has_its_place_in_the_reference(reference: Path) -> None:
    assert set(site_reference.PARTS) == set(KINDS)
    everything = ""
    for kind in KINDS:
        page = (reference / f"{kind}.md").read_text(encoding="utf-8")
        for name, entry in catalog.entries(kind).items():
            assert f"\n## {name}\n" in page
            for parameter in entry.parameters:
                assert f"| `{parameter}` |" in page.partition(f"\n## {name}\n")[2]
        everything += page
    assert names_in_source() <= set(re.findall(r"^## (.*)$", everything, re.M))


def names_in_source() -> set[str]:
    """Every name in an ENTRIES of the package, read without importing."""
    names = set()
    for path in (ROOT / "src").rglob("*.py"):
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "ENTRIES":
                assert isinstance(node.value, ast.Dict)
                names |= {ast.literal_eval(key) for key in node.value.keys if key}
    return names


def test_scores_commands_and_the_python_interface_are_in_the_reference(reference: Path) -> None:
    scores = (reference / "scores.md").read_text(encoding="utf-8")
    assert all(f"| `{name}` |" in scores for name in listing.summaries("scores"))
    commands = (reference / "command.md").read_text(encoding="utf-8")
    for command in cli.app.registered_commands:
        assert command.callback is not None
        name = command.name or command.callback.__name__
        assert f"\n## `commonweal {name}`\n" in commands
    assert "\n### `commonweal data show`\n" in commands
    assert "Print the result as one JSON value" in commands
    experiment = (reference / "experiment.md").read_text(encoding="utf-8")
    assert not re.search(r"\|\s*\|$", experiment, re.M)  # every key has a meaning


def test_the_reference_shows_descriptions_as_text() -> None:
    assert site_reference.prose("a_i <b> *c* `d_e` [f]") == r"a\_i &lt;b\> \*c\* `d_e` \[f\]"


def test_the_site_documents_the_python_interface_with_its_examples(site: Path) -> None:
    page = (site / "reference" / "python" / "index.html").read_text(encoding="utf-8")
    for name in set(commonweal.__all__) - {"metrics"}:
        assert f'id="commonweal.{name}"' in page
    assert 'id="commonweal.metrics.paired"' in page
    assert "<blockquote>" not in page  # that is what a doctest outside of code becomes


def test_formulas_are_typeset(site: Path) -> None:
    fedavg = "weights<sub><i>i</i></sub> = <i>n</i><sub><i>i</i></sub> / ∑ <i>n</i>"
    for page in ("rules", "reference/rules"):
        assert fedavg in (site / page / "index.html").read_text(encoding="utf-8")
    inner = "⟨<i>v</i><sub><i>i</i></sub>, <i>u</i><sub><i>j</i></sub>⟩ &lt; 0"
    assert inner in (site / "rules" / "index.html").read_text(encoding="utf-8")


def test_the_site_is_searchable_and_asks_no_other_host(site: Path) -> None:
    found = json.loads((site / "search.json").read_text(encoding="utf-8"))["items"]
    texts = " ".join(item["title"] + item["text"] for item in found)
    for word in ("aaggff-s", "Semi-VRed", "--baselines", "Federation", "worth it"):
        assert word in texts
    for page in site.rglob("*.html"):
        text = page.read_text(encoding="utf-8")
        assert not re.search(r'<(?:script|img|iframe)[^>]*src="(?:https?:)?//', text), page
        assert not re.search(r'<link[^>]*href="(?:https?:)?//', text), page


def test_every_page_is_in_the_menu_and_opens_with_a_heading(site: Path) -> None:
    docs = ROOT / "docs"
    home = (site / "index.html").read_text(encoding="utf-8")
    for path in docs.rglob("*.md"):
        page = path.relative_to(docs).with_suffix("").as_posix().removesuffix("/README")
        assert re.search(rf'href="(\./)?{page}/"', home), page
        text = path.read_text(encoding="utf-8")
        assert text.startswith("# ") and text.count("\n# ") == len(_comments_in_code(text))


def _comments_in_code(text: str) -> list[str]:
    """Lines of code blocks that look like headings."""
    blocks = re.findall(r"^```.*?^```", text, re.M | re.S)
    return [line for block in blocks for line in re.findall(r"\n# .*", block)]


def anchors(text: str) -> set[str]:
    """The anchors of a page's headings, as code hosts make them."""
    headings = re.findall(r"^#+ (.*)$", text, re.M)
    plain = [re.sub(r"[^\w\- ]", "", heading.lower()).strip() for heading in headings]
    return {heading.replace(" ", "-") for heading in plain}


@cases("text", TEXTS)
def test_no_link_is_broken(text: Path) -> None:
    content = re.sub(
        r"^```.*?^```|`[^`\n]*`", "", text.read_text(encoding="utf-8"), flags=re.M | re.S
    )
    for target in LINK.findall(content):
        if re.match(r"https?://", target):
            assert re.fullmatch(r"https://[\w.-]+\.[a-z]+(/[\w./%#~-]*)?", target), target
            continue
        path, _, anchor = target.partition("#")
        file = (text.parent / path).resolve() if path else text
        assert file.exists(), f"{text.name}: there is no {target}"
        if anchor:
            assert anchor in anchors(file.read_text(encoding="utf-8")), target


def test_commands_in_help_texts_exist() -> None:
    """`For example: commonweal ...` names a command."""
    root = typer.main.get_command(cli.app)
    names = set(root.to_info_dict(typer.Context(root))["commands"])
    for command in cli.app.registered_commands:
        assert command.callback is not None
        for name in re.findall(r"commonweal ([a-z]+)", command.callback.__doc__ or ""):
            assert name in names, name
