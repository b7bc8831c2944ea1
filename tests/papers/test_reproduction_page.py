"""The layout of docs/reproduction.md: what is unsettled comes first, notes are given once, links lead somewhere."""

import re
from pathlib import Path

import pytest

from ncollapse.papers.catalogue import CATALOGUE, get_experiment
from ncollapse.papers.claims import Claim
from ncollapse.papers.coverage import Coverage
from ncollapse.papers.experiment import ClaimCause, Experiment
from ncollapse.papers.markdown import list_notes, quote_start, refer_to_told, to_markdown
from ncollapse.papers.outcome import Outcome, evaluate
from ncollapse.papers.unsettled import STATUSES, list_unsettled
from ncollapse.runs.record import read_runs
from reference.scripts import load_script

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def text():
    return (ROOT / "docs" / "reproduction.md").read_text()


@pytest.fixture(scope="module")
def outcomes():
    records = read_runs(ROOT / "results" / "runs")
    return {name: evaluate(experiment, records) for name, experiment in CATALOGUE.items()}


def make(*claims, run=2, trial=0, name="bce-vs-ce/figure-2", **known):
    """An outcome with these claims."""
    experiment = Experiment(name, "title", list, **known)
    return Outcome(experiment, (), claims, Coverage(2, run, run, trial, trial=trial), (), "", "")


def test_every_link_within_the_page_leads_to_one_place(text):
    places = re.findall(r'^<a id="([^"]+)"></a>$', text, re.MULTILINE)
    headings = re.findall(r"^##+ ([A-Za-z ,]+)$", text, re.MULTILINE)
    places += [heading.lower().replace(",", "").replace(" ", "-") for heading in headings]
    assert len(places) == len(set(places))
    links = set(re.findall(r"\]\(#([^)]+)\)", text))
    assert len(links) > 40
    assert links <= set(places)


def test_links_from_other_pages_lead_to_an_entry(text):
    found = [re.findall(r"reproduction\.md#([^)]+)\)", page.read_text()) for page in (ROOT / "docs").glob("*.md")]
    links = {link for links in found for link in links}
    assert len(links) >= 3
    assert all(f'<a id="{link}"></a>' in text for link in links)


def test_every_entry_with_a_section_is_in_the_contents(text, outcomes):
    contents = text.partition("## Contents")[2].partition("## What")[0]
    for name, outcome in outcomes.items():
        item = name.partition("/")[2]
        if outcome.records or outcome.experiment.protocol == "landscape":
            anchor = name.replace("/", "-")
            assert f"[{item}](#{anchor})" in contents
            assert text.count(f'<a id="{anchor}"></a>\n\n## {name}: ') == 1
        else:
            assert f"{item} (not run)" in contents


def test_a_note_of_several_entries_is_given_once(text, outcomes):
    shown = [outcome for outcome in outcomes.values() if outcome.records]
    notes = [note for outcome in shown for note in list_notes(outcome)]
    assert len(notes) - len(set(notes)) > 40, "else there is nothing to test"
    for note in set(notes):
        assert text.count(f"- {note}\n") == 1
        links = [line for line in text.splitlines() if line.startswith("- As noted under [")]
        referred = sum(quote_start(note) in line for line in links)
        same_start = sum(quote_start(other) == quote_start(note) for other in notes)
        first = len({other for other in notes if quote_start(other) == quote_start(note)})
        assert referred == same_start - first


def test_a_page_of_its_own_has_every_note(outcomes):
    for outcome in outcomes.values():
        page = to_markdown(outcome)
        assert all(f"- {note}\n" in page for note in list_notes(outcome))


def test_notes_keep_their_order():
    told = {"a b": "[x](#x)", "c": "[y](#y)", "d": "[x](#x)"}
    said = refer_to_told(["new", "a b", "c", "d", "newer"], told)
    assert said == ["new", 'As noted under [x](#x): "a b"; "d".', 'As noted under [y](#y): "c".', "newer"]


def test_everything_unsettled_is_listed_before_the_entries(text, outcomes):
    """Counted anew: each claim and number of the tables' verdicts, by paper."""
    part = text.partition("## What is open")[2].partition("\n## ")[0]
    for paper in dict.fromkeys(outcome.experiment.paper for outcome in outcomes.values()):
        mine = [outcome for outcome in outcomes.values() if outcome.experiment.paper == paper]
        listed = part.partition(f"### {paper}\n")[2].partition("\n### ")[0]
        bullets = [line for line in listed.splitlines() if line.startswith("- ")]
        wanted = set()
        for outcome in mine:
            for claim in outcome.claims:
                if not claim.holds or outcome.only_tried:
                    wanted.add((claim.text, claim.detail, claim.holds))
            wanted |= {(claim.text, claim.detail, "beyond") for claim in outcome.beyond if not claim.holds}
            for line in outcome.lines:
                if line.published and line.verdict in ("reproduced in direction", "not reproduced", "too short"):
                    wanted.add((line.row, line.column, line.runs, line.published.printed))
                    assert any(f"{line.row}, {line.column}: " in bullet for bullet in bullets)
        assert len(bullets) == len(wanted)
        assert all(len(re.sub(r"\(#[^)]*\)", "", bullet)) < 200 for bullet in bullets), "short"
        for outcome in mine:
            unrun = sum(line.published is not None and line.verdict == "not run" for line in outcome.lines)
            assert not unrun or f"({unrun} number" in listed.partition("**Not run**")[2]


def test_the_page_says_not_explained_as_often_as_its_entries(text, outcomes):
    found = list_unsettled(o for o in outcomes.values() if o.experiment.paper == "bce-vs-ce")
    numbers = [item for item in found if item.status == "not explained" and not item.is_claim]
    entries = text[text.index('<a id="bce-vs-ce-table-1">') : text.index('<a id="bce-vs-ce-early-table-1">')]
    causes = re.findall(r"^- Not reproduced: (.*): not explained[.;]", entries, re.MULTILINE)
    assert len(numbers) == sum(len(names.split("; ")) for names in causes) > 10


def test_how_a_claim_is_unsettled():
    holds, fails, unknown = (Claim(text, value, "") for text, value in (("a", True), ("b", False), ("c", None)))
    caused = {"claim_causes": (ClaimCause("b", "since it is so"),)}

    def statuses(outcome):
        return [(item.status, item.text) for item in list_unsettled([outcome])]

    assert statuses(make(holds, unknown, fails)) == [("not explained", "b"), ("open", "c")]
    assert statuses(make(fails, **caused)) == [("explained", "b")]
    assert statuses(make(fails, asks=True)) == [("answered no", "b")]
    assert statuses(make(fails, asks=True, **caused)) == [("explained", "b")]
    tried = [("too short", "holds so far: a"), ("too short", "does not hold so far: b"), ("open", "c")]
    assert statuses(make(holds, fails, unknown, trial=2)) == tried
    assert {status for status, _ in tried} < set(STATUSES)


def test_a_claim_of_two_entries_is_listed_once():
    same, other = Claim("a", None, "1 of 2"), Claim("a", None, "2 of 2")
    found = list_unsettled([make(same), make(same, other, name="bce-vs-ce/figure-5")])
    assert [[entry.item for entry in item.entries] for item in found] == [["figure-2", "figure-5"], ["figure-5"]]


def test_without_unsettled_claims_nothing_is_listed():
    script = load_script("reproduction")
    settled = Outcome(get_experiment("bce-vs-ce/figure-2"), (), (Claim("a", True, ""),), Coverage(2, 2), (), "", "")
    lines = script.describe_unsettled([settled])
    assert lines[lines.index("### bce-vs-ce") :] == ["### bce-vs-ce", ""]
