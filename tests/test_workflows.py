"""What GitHub runs and asks, and what is said to contributors: .github, .pre-commit-config.yaml, CONTRIBUTING.md.

`make lint-workflows` reads the workflows with linters. Here is what no linter knows: that they and CI make the same
targets, and that versions and commands are those of pyproject.toml and of the Makefile.
"""

from __future__ import annotations

import json
import re
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
import yaml

import kstore
from tests.test_docs import REPOSITORY, text_of

GITHUB = REPOSITORY / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
PROJECT = tomllib.loads(text_of(REPOSITORY / "pyproject.toml"))
MAKEFILE = text_of(REPOSITORY / "Makefile")


def read_yaml(path: Path) -> dict[str, Any]:
    found = yaml.safe_load(text_of(path))
    assert isinstance(found, dict)
    return found


JOBS = {(path.name, name): job for path in WORKFLOWS for name, job in read_yaml(path)["jobs"].items()}


def commands(job: dict[str, Any]) -> list[str]:
    return [step["run"] for step in job.get("steps", ()) if "run" in step]


def targets_of_ci(script: str) -> set[str]:
    """What .ci/run makes: by `make`, and by its functions `run` and `together`."""
    lines = re.sub(r"\\\n", " ", script)
    lines = "\n".join(line for line in lines.splitlines() if not line.lstrip().startswith(("#", "say")))
    made = re.findall(r"\b(?:make|run|together) ((?:[\w./=-]+ +)*[\w./-]+)", lines)
    return {word for words in made for word in words.split() if re.fullmatch(r"[a-z][a-z-]*", word)}


def matrix() -> tuple[list[str], list[str]]:
    """The versions of Python that must pass, and those that are tried."""
    given = JOBS["tests.yml", "test"]["strategy"]["matrix"]
    return given["python"], sorted({each["python"] for each in given["include"]})


# --- workflows --------------------------------------------------------------------------------------------------------


def test_the_targets_of_ci_are_found_in_every_form() -> None:
    script = """# make nothing
    run() { make --no-print-directory "$1" </dev/null; }
    make --no-print-directory --output-sync -j 2 lint jvm build/tsan/.built </dev/null
    run test || once_more test
    together leaks \\
        tsan
    say 'make no such thing'
    """
    assert targets_of_ci(script) >= {"lint", "jvm", "test", "leaks", "tsan"}
    assert not targets_of_ci(script) & {"nothing", "no", "such", "thing"}


@pytest.mark.parametrize(("file", "name"), JOBS)
def test_a_job_makes_only_what_ci_makes_too(file: str, name: str) -> None:
    script = text_of(REPOSITORY / ".ci" / "run")
    made = targets_of_ci(script)
    installed = set(" ".join(re.findall(r"missing\+=\((.*)\)", script)).split())
    for command in commands(JOBS[file, name]):
        if packages := command.partition("sudo apt-get update -qq && sudo apt-get install -y -qq ")[2]:
            assert set(packages.split()) <= installed, command
        else:
            assert re.fullmatch(r"make( [a-z-]+)+", command), command
            assert set(command.split()[1:]) <= made, command


@pytest.mark.parametrize(("file", "name"), JOBS)
def test_a_job_ends_in_bounded_time(file: str, name: str) -> None:
    job = JOBS[file, name]
    assert "uses" in job or job["timeout-minutes"] <= 60


def test_only_what_publishes_gets_an_identity() -> None:
    asking = {key for key, job in JOBS.items() if "id-token" in job["permissions"]}
    assert asking == {("publish.yml", "publish"), ("docs.yml", "deploy")}
    for key in asking:
        assert commands(JOBS[key]) == [], "nothing of the checkout runs where the identity is"
        assert "environment" in JOBS[key]


def test_an_action_is_pinned_by_one_hash_and_names_its_version() -> None:
    pins = defaultdict(set)
    for path in WORKFLOWS:
        for action in re.findall(r"uses: (\S.*)", text_of(path)):
            if not action.startswith("./"):
                pinned = re.fullmatch(r"([\w.-]+/[\w.-]+)@([0-9a-f]{40}) # (v\d+\.\d+\.\d+)", action)
                assert pinned, action
                pins[pinned[1]].add((pinned[2], pinned[3]))
    assert len(pins) >= 5
    assert {action: found for action, found in pins.items() if len(found) > 1} == {}


def test_the_version_after_the_supported_ones_is_tried() -> None:
    """tests/test_packaging.py compares the supported ones with what the package says."""
    required, tried = matrix()
    lowest = int(required[0].removeprefix("3."))
    assert [*required, *tried] == [f"3.{lowest + number}" for number in range(len(required) + 1)]
    for path in WORKFLOWS:
        assert set(re.findall(r'python-version: "([\d.]+)"', text_of(path))) <= set(required), path


def test_a_version_that_is_only_tried_fails_no_run() -> None:
    job = JOBS["tests.yml", "test"]
    given = job["strategy"]["matrix"]
    assert job["continue-on-error"] == "${{ matrix.experimental }}"
    assert given["experimental"] == [False]
    assert all(each["experimental"] for each in given["include"])
    assert {each["system"] for each in given["include"]} == set(given["system"])


# --- forms ------------------------------------------------------------------------------------------------------------


def test_the_form_of_a_bug_asks_for_the_commands_that_say_most() -> None:
    fields = {each["id"]: each for each in read_yaml(GITHUB / "ISSUE_TEMPLATE" / "bug.yml")["body"] if "id" in each}
    asked = {name for name, field in fields.items() if field.get("validations", {}).get("required")}
    assert asked == {"happened", "expected", "program", "version"}
    assert fields["version"]["attributes"]["label"] == "kstore --version --verbose"
    assert fields["describe"]["attributes"]["label"] == "kstore describe --json DIRECTORY"


def kstore_command(*arguments: str) -> str:
    script = "import sys; from kstore import cli; sys.exit(cli.main())"
    done = subprocess.run([sys.executable, "-c", script, *arguments], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_the_versions_that_a_bug_names_are_shown() -> None:
    assert kstore_command("--version", "--verbose").startswith(f"kstore {kstore.__version__}\n")


def test_describe_shows_no_contents_and_no_names_of_groups_or_transactions(tmp_path: Path) -> None:
    """As the form of a bug promises; paths and names of topics are shown."""
    with kstore.Store.open(tmp_path / "data", background=False) as store:
        store.create_topic("payments")
        store.append("payments", b"a-secret-value", key=b"a-secret-key", headers=[("a-secret-header", b"a-secret-h")])
        with store.producer(transactional_id="a-secret-transaction") as producer, producer.transaction() as transaction:
            transaction.append("payments", b"a-secret-value")
            transaction.commit_offsets("a-secret-group", {("payments", 0): 1})
    for path in (tmp_path / "data", tmp_path / "data" / "payments-0"):
        shown = kstore_command("describe", "--json", str(path))
        assert "payments" in {each["topic"] for each in json.loads(shown)["partitions"]}
        assert "secret" not in shown


def test_addresses_are_those_of_the_repository() -> None:
    home = PROJECT["project"]["urls"]["Repository"]
    texts = [text_of(GITHUB / "ISSUE_TEMPLATE" / "config.yml"), text_of(REPOSITORY / "SECURITY.md")]
    for text in texts:
        found = re.findall(r"https://github\.com/[\w.-]+/[\w.-]+", text)
        assert set(found) == {home}
        assert f"{home}/security/advisories/new" in text


# --- commands ---------------------------------------------------------------------------------------------------------


def recipe(target: str) -> str:
    found = re.search(rf"^{re.escape(target)}:.*\n((?:\t.*\n)+)", MAKEFILE, re.MULTILINE)
    assert found is not None
    return found[1]


def test_the_hooks_before_a_commit_are_the_linters_of_ci_in_their_versions() -> None:
    linters = re.findall(r"^\t\$\(BIN\)/(\w.*)$", recipe("build/lint/.passed"), re.MULTILINE)
    (repository,) = read_yaml(REPOSITORY / ".pre-commit-config.yaml")["repos"]
    assert repository["repo"] == "local", "pinned repositories would say the versions a second time"
    for hook in repository["hooks"]:
        entry = hook["entry"].removesuffix(" --force-exclude")
        assert entry == "make lint-workflows" or entry.removeprefix(".venv/bin/") in [
            linter.removesuffix(" .") for linter in linters
        ]
        assert "additional_dependencies" not in hook


def test_the_help_of_make_names_every_target() -> None:
    listed = re.search(r"^\.PHONY: (.*)$", MAKEFILE, re.MULTILINE)
    assert listed is not None
    named = set(re.findall(r"make ([a-z-]+)", recipe("help")))
    assert set(listed[1].split()) - named == {"help"}


def words_of(variable: str) -> list[str]:
    """The words of a variable of the Makefile."""
    found = re.search(rf"^{variable} := ((?:.*\\\n)*.*)$", MAKEFILE, re.MULTILINE)
    assert found is not None, variable
    return found[1].replace("\\\n", " ").split()


def test_what_quick_runs_and_leaves_out_is_there() -> None:
    parts, slow = words_of("QUICK"), words_of("SLOW")
    files = [*parts, *(f"{each}.py" for each in slow)]
    assert [each for each in files if not (REPOSITORY / "tests" / each).exists()] == []
    assert [each for each in slow if each.partition("/")[0] not in parts] == [], "not run anyway"


def test_contributors_are_told_what_quick_runs_and_which_python_it_needs() -> None:
    text = text_of(REPOSITORY / "CONTRIBUTING.md")
    told = re.search(r"`make quick` runs the tests of (.*?),\s+and a random history", text, re.DOTALL)
    assert told is not None
    assert re.findall(r"`(\w+)`", told[1]) == [each for each in words_of("QUICK") if "/" not in each]
    assert f"Python {PROJECT['project']['requires-python'].removeprefix('>=')} or newer" in text
    shown = re.findall(r"^    .*?\b(tests/[\w./-]+)", text, re.MULTILINE)
    assert len(shown) >= 2
    assert [each for each in shown if not (REPOSITORY / each).exists()] == []
    chosen = re.findall(r"pytest (\S+) -k (\w+)", text)
    assert chosen
    assert all(re.search(rf"def test_\w*{word}", text_of(REPOSITORY / file)) for file, word in chosen)
