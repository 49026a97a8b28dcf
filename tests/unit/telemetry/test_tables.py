"""docs/telemetry.md and examples/dashboard.json say what the code does: events, metrics, labels, attributes, outcomes."""

import json
import re
from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
from source_tree import ROOT

from callboard.telemetry.events import EVENTS, OUTCOMES, Levels, RequestStarted
from callboard.telemetry.otel import HISTOGRAMS, SPAN_ATTRIBUTES
from callboard.telemetry.tally import METRICS, Metric

PAGE = (ROOT / "docs" / "telemetry.md").read_text(encoding="utf-8")
DASHBOARD = json.loads((ROOT / "examples" / "dashboard.json").read_text(encoding="utf-8"))
# Labels of the scrape, and Prometheus's own.
SCRAPED = {"job", "instance", "le"}


def rows(head: str) -> list[list[str]]:
    """Cells of the table that begins with a line."""
    _, found, rest = PAGE.partition(f"\n{head}\n")
    assert found, head
    lines = rest.split("\n\n")[0].splitlines()[1:]
    return [[cell.strip() for cell in line.strip("|").split(" | ")] for line in lines]


def names(cell: str) -> list[str]:
    """What stands in backquotes."""
    return re.findall(r"`([^`]+)`", cell)


def attributes(kind: type[Any]) -> list[str]:
    """What a reader of an event finds in it."""
    own = [field for field in kind.__struct_fields__ if not field.startswith("_")]
    return own + [name for name, value in vars(kind).items() if isinstance(value, property)]


def test_every_event_is_told_of_with_its_attributes() -> None:
    found = {names(name)[0]: (names(kind)[0], names(said)) for name, kind, said in rows("| event | type | attributes |")}
    assert found.keys() == EVENTS.keys()
    for name, kind in EVENTS.items():
        assert issubclass(kind, msgspec.Struct)
        assert found[name][0] == kind.__name__
        missing = set(attributes(kind)) - set(found[name][1])
        assert not missing, f"{name} has {missing}, which docs/telemetry.md does not tell of"
        documented = kind.__doc__ or ""
        assert all(f"{field}:" in documented or kind is RequestStarted for field in attributes(kind))
    assert set(Levels._fields) <= set(found["server.open"][1])


def test_every_metric_is_told_of_with_its_labels() -> None:
    found = rows("| metric | kind | labels | what |")
    told = [
        [f"`{metric.prometheus}{'_total' if metric.kind == 'counter' else ''}`", metric.kind, list(metric.labels), metric.text]
        for metric in METRICS.values()
    ]
    assert [[name, kind, names(labels), text] for name, kind, labels, text in found] == told
    assert all(name in PAGE for name in HISTOGRAMS)


def test_every_attribute_of_a_span_is_told_of() -> None:
    assert {names(key)[0]: said for key, said in rows("| attribute | value |")} == SPAN_ATTRIBUTES


def test_every_outcome_is_told_of() -> None:
    assert sorted(names(row[0])[0] for row in rows("| outcome | |")) == sorted(OUTCOMES)


def panels() -> Iterator[dict[str, Any]]:
    """Panels of the dashboard that show something."""
    return (panel for panel in DASHBOARD["panels"] if panel["type"] != "row")


def samples(metric: Metric) -> set[str]:
    """Names that a metric's samples have."""
    suffixes = {"counter": ["_total"], "gauge": [""], "histogram": ["_bucket", "_sum", "_count"]}[metric.kind]
    return {metric.prometheus + suffix for suffix in suffixes}


@pytest.mark.parametrize("panel", [pytest.param(panel, id=panel["title"]) for panel in panels()])
def test_a_panel_asks_for_what_there_is(panel: dict[str, Any]) -> None:
    known = {name: metric for metric in METRICS.values() for name in samples(metric)}
    for target in panel["targets"]:
        query = target["expr"]
        asked = re.findall(r"\b(?:callboard|process)_[a-z_]+", query)
        assert asked, query
        labels = set(SCRAPED)
        for name in asked:
            assert name in known or name == "process_resident_memory_bytes", f"{panel['title']}: there is no {name}"
            labels |= set(known[name].labels) if name in known else set()
        used = {label for group in re.findall(r"by \(([^)]*)\)", query) for label in re.split(r",\s*", group)}
        used |= set(re.findall(r"[{,]\s*([a-z_]+)\s*(?:=~|!=|=)", query))
        used |= set(re.findall(r"{{(\w+)}}", target["legendFormat"]))
        assert used <= labels, f"{panel['title']}: there is no label {used - labels} in {query}"
        assert query.count("(") == query.count(")")
        outcomes = re.findall(r'outcome=~?"([^"]+)"', query)
        assert {each for group in outcomes for each in group.split("|")} <= set(OUTCOMES)
    assert panel["description"]


def test_every_metric_is_on_the_dashboard() -> None:
    queries = " ".join(target["expr"] for panel in panels() for target in panel["targets"])
    unseen = {metric.name for metric in METRICS.values() if not any(re.search(rf"\b{name}\b", queries) for name in samples(metric))}
    assert unseen <= {"streams_opened", "stream_duration"}, f"nobody sees {unseen}"


def test_panels_have_places_of_their_own() -> None:
    taken: set[tuple[int, int]] = set()
    for panel in DASHBOARD["panels"]:
        place = panel["gridPos"]
        cells = {(x, y) for x in range(place["x"], place["x"] + place["w"]) for y in range(place["y"], place["y"] + place["h"])}
        assert not cells & taken, panel["title"]
        assert all(x < 24 for x, _ in cells)
        taken |= cells
    assert len({panel["id"] for panel in DASHBOARD["panels"]}) == len(DASHBOARD["panels"])
