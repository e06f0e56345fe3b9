"""The HTML report: what it says, and that a real browser shows it, light, dark and on paper."""

import base64
import functools
import html
import json
import re
import shlex
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from browser import open_browser, show
from report_cases import failed, measured, sweep_data, trial, two_objectives
from sweep_maker import SweepSpec, make_sweep

from autotune.objective import Start
from autotune.report.answer import answer
from autotune.report.page import figures_of, gauge_of, interval_of, report_page, write_report
from autotune.report.reading import SweepData, read_sweep

pytestmark = pytest.mark.timeout(600)

LONG = "a" * 60 + ".name_" + "b" * 30
SPECS = {
    "thirty": SweepSpec(name="thirty"),
    "one trial": SweepSpec(name="one", num_trials=1, budget=1),
    "five hundred trials": SweepSpec(name="many", num_trials=500, budget=500, max_concurrent=4),
    "nothing feasible": SweepSpec(name="none", num_trials=9, limits=(("kl_std", 1e-9),)),
    "a long name": SweepSpec(name=LONG, num_trials=9),
    "nothing profiled": SweepSpec(name="unprofiled", num_trials=9, profiled_steps=0),
}


Pages = Callable[[str], tuple[SweepData, Path]]


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> Pages:
    """Name of SPECS -> the sweep and its report, made when first asked for."""
    folder = tmp_path_factory.mktemp("pages")

    @functools.cache
    def made(name: str) -> tuple[SweepData, Path]:
        data = read_sweep(make_sweep(folder, SPECS[name]).folder)
        path = data.folder / "report.html"
        write_report(path, data, answer(data))
        return data, path

    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    with open_browser() as driver:
        yield driver


def body_of(page: str) -> str:
    """The page without scripts and styles, tags removed."""
    page = re.sub(r"<(script|style).*?</\1>", " ", page, flags=re.S)
    return re.sub(r"\s+", " ", re.sub(r"<[^>]*>", "", page))


def test_the_first_screen_holds_the_answer() -> None:
    steps = {0: measured(0, [100.0, 100.0]), 1: measured(1, [180.0, 186.0])}
    records = [trial(0), trial(1, 183.0), trial(2, 900.0, memory=0.99)]
    data = sweep_data(records, steps)
    hero = body_of(report_page(data, answer(data))).split("Where the gain comes from")[0]
    for part in (
        "not verified 1.83×",
        "95 % interval 1.80 to 1.86",
        "peak_memory_ratio binding 50 % of 90 %",
        "44 % head-room",
        "exposed_comm_ratio n/a of 20 % not measured: no profiled step finished",
        "ppo_micro_batch_size_per_gpu28",
        "python -m verl.trainer.main_ppo --config-path /sweeps/demo --config-name best",
        "100 GPU-hours of the base job become 55 (54 to 56).",
    ):
        assert part in hero


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ([trial(0, memory=0.99)], "no setting that was tried keeps every limit"),
        ([trial(0)], "keep the base job's own settings"),
        ([], "No trial yet"),
        ([failed(0)], "Nothing feasible The baseline comes closest"),
        ([trial(0)], "Baseline wins Among 1 trial, no other feasible one is better"),
        ([trial(0, memory=0.99), trial(1, memory=0.95)], "Nothing feasible Trial 1 comes closest"),
        ([failed(0), trial(1)], "the baseline was not measured"),
    ],
)
def test_every_kind_of_answer_has_its_words(records: list[Any], words: str) -> None:
    data = sweep_data(records, exported=None)
    text = html.unescape(body_of(report_page(data, answer(data))))
    assert words in text and "Run it in production" not in text


def test_two_objectives_have_a_section_of_their_own() -> None:
    data = two_objectives([trial(0), trial(1, 150.0, memory=0.7), trial(2, 900.0, memory=0.99)])
    page = report_page(data, answer(data))
    front = body_of(page).split("The trade-off")[1].split("What the knobs do")[0]
    assert "1150 tokens/s/GPU70 %" in front and "0100 tokens/s/GPU50 %baseline" in front
    assert "900" not in front
    figure = json.loads(figures_of(data, answer(data))["front"])
    assert figure["data"][-1]["x"] == [70.0, 50.0]
    one = sweep_data(data.trials)
    assert "The trade-off" not in report_page(one, answer(one))


def test_what_is_copied_survives_a_shell() -> None:
    odd = trial(1, 150.0, overrides=["a.b=[1,2]", "+c=x y"])
    data = sweep_data([trial(0), odd], folder=Path("/my sweeps/demo"))
    page = html.unescape(report_page(data, answer(data)))
    commands = re.findall(r"<pre>(.*?)</pre>", page, flags=re.S)
    words = [shlex.split(command.replace("\\\n", "")) for command in commands[:4]]
    assert words[0][4] == "/my sweeps/demo"
    assert words[1] == ["a.b=[1,2]", "+c=x y"]
    assert words[2][2] == "/my sweeps/demo/config.yaml"
    assert words[3] == ["autotune", "show", "/my sweeps/demo", "1"]


def test_texts_of_records_cannot_become_markup() -> None:
    cause = "</script><script>alert(1)</script><b>x"
    data = sweep_data([trial(0), failed(1), failed(2)])
    record = data.trials[1].from_dict({**data.trials[1].to_dict(), "cause": cause})
    page = report_page(sweep_data([data.trials[0], record]), answer(data))
    assert "<script>alert" not in page and "&lt;script&gt;alert" in page


def test_the_page_refers_to_nothing_outside_itself() -> None:
    data = sweep_data([trial(0), trial(1, 150.0)])
    page = report_page(data, answer(data))
    outside = re.sub(r"<script>.*?</script>", "", page, flags=re.S)
    assert not re.search(r"(src|href)\s*=|@import|url\(|https?://", outside)


def test_secrets_of_the_environment_are_not_in_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("WANDB_API_KEY", "s3cr3t-value")
    data = sweep_data([trial(0), failed(1)])
    record = failed(1).from_dict({**failed(1).to_dict(), "cause": "401: s3cr3t-value"})
    write_report(tmp_path / "r.html", sweep_data([trial(0), record]), answer(data))
    text = (tmp_path / "r.html").read_text()
    assert "s3cr3t-value" not in text and "401: &lt;WANDB_API_KEY removed&gt;" in text


def test_a_gauge_is_full_at_its_limit_and_red_beyond() -> None:
    limits = answer(sweep_data([trial(0, memory=0.9)])).limits
    gauge = gauge_of(limits[0], None)
    assert (gauge.width_percent, gauge.tone) == (100.0, "warn")
    broken = gauge_of(answer(sweep_data([trial(0, memory=0.99)])).limits[0], "peak_memory_ratio")
    assert broken.tone == "bad" and broken.room == "broken by 10 %" and broken.is_binding
    assert gauge_of(limits[1], None).tone == "none"
    far = gauge_of(answer(sweep_data([trial(0, memory=2.7)])).limits[0], None)
    assert far.room == "broken: 3 times the limit"


def test_the_picture_of_the_interval_holds_one_and_both_ends() -> None:
    steps = {0: measured(0, [100.0, 100.0]), 1: measured(1, [180.0, 186.0])}
    picture = interval_of(answer(sweep_data([trial(0), trial(1, 183.0)], steps)))
    assert picture is not None and picture.low is not None and picture.high is not None
    assert 0 < picture.one < picture.low < picture.ratio < picture.high < 100


def test_what_cannot_be_drawn_is_left_out() -> None:
    data = sweep_data([failed(0)])
    drawn = figures_of(data, answer(data))
    assert drawn["timeline"] is not None
    assert [name for name, figure in drawn.items() if figure is not None] == ["timeline"]


SLOW = pytest.param("five hundred trials", marks=pytest.mark.nightly)


@pytest.mark.parametrize("name", [*(name for name in SPECS if "hundred" not in name), SLOW])
def test_a_browser_draws_every_chart_without_an_error(
    name: str, pages: Pages, browser: Any
) -> None:
    data, path = pages(name)
    show(browser, path)
    drawn = browser.execute_script(
        "return [...document.querySelectorAll('.plot')].map(p => [p.dataset.figure,"
        " p.querySelectorAll('.main-svg').length > 0 && p.clientHeight > 80])"
    )
    assert dict(drawn) == {
        figure: True for figure, text in figures_of(data, answer(data)).items() if text is not None
    }
    assert [entry for entry in browser.get_log("browser") if entry["level"] == "SEVERE"] == []


@pytest.mark.parametrize("width", [420, 1280])
@pytest.mark.parametrize("name", ["thirty", "a long name"])
def test_nothing_sticks_out_of_the_page(
    name: str, width: int, pages: Pages, browser: Any
) -> None:
    show(browser, pages(name)[1], width=width)
    assert browser.execute_script("return document.documentElement.scrollWidth") <= width


def test_text_and_charts_are_readable_in_light_and_dark(
    pages: Pages, browser: Any
) -> None:
    script = (
        "const light = c => {const [r,g,b] = c.match(/[0-9.]+/g).map(Number);"
        " return (0.299*r + 0.587*g + 0.114*b) / 255};"
        "const page = light(getComputedStyle(document.body).backgroundColor);"
        "return [...document.querySelectorAll('h1, .big, td, .plot .xtick text, .plot .x2tick text,"
        " .plot .annotation-text')].map(e => {const s = getComputedStyle(e);"
        " return Math.abs(light(e.namespaceURI.includes('svg') ? s.fill : s.color) - page)})"
    )
    for scheme in ("light", "dark"):
        show(browser, pages("thirty")[1], scheme=scheme)
        contrasts = browser.execute_script(script)
        assert len(contrasts) > 100 and min(contrasts) > 0.35, scheme


def test_the_table_is_sorted_by_a_click_on_its_head(
    pages: Pages, browser: Any
) -> None:
    data, path = pages("thirty")
    show(browser, path)
    column = (
        "return [...document.querySelectorAll('#all tbody tr')].map(r => r.cells[2].dataset.sort)"
    )
    head = browser.find_element("css selector", "#all th:nth-child(3)")
    values = sorted(
        value for r in data.trials if (value := r.value("throughput_tokens_per_s_per_gpu"))
    )
    unmeasured = [""] * (len(data.trials) - len(values))
    head.click()
    assert browser.execute_script(column) == [*map(str, values), *unmeasured]
    head.click()
    assert browser.execute_script(column) == [*map(str, values[::-1]), *unmeasured]


def test_the_table_is_filtered_by_whole_words(
    pages: Pages, browser: Any
) -> None:
    data, path = pages("thirty")
    show(browser, path)
    browser.find_element("css selector", "#filter").send_keys("feasible")
    shown = browser.execute_script(
        "return [...document.querySelectorAll('#all tbody tr')].filter(r => !r.hidden)"
        ".map(r => r.cells[1].textContent)"
    )
    assert shown == ["feasible"] * sum(record.feasible for record in data.trials)


def test_paper_is_white_and_holds_every_trial(
    pages: Pages, browser: Any, tmp_path: Path
) -> None:
    show(browser, pages("thirty")[1], scheme="dark")
    command = {"printBackground": True, "preferCSSPageSize": True}
    printed = base64.b64decode(browser.execute_cdp_cmd("Page.printToPDF", command)["data"])
    assert printed.startswith(b"%PDF") and 3 <= printed.count(b"/Type /Page\n") <= 9
    browser.execute_cdp_cmd("Emulation.setEmulatedMedia", {"media": "print"})
    color = "return getComputedStyle(document.body).backgroundColor"
    assert browser.execute_script(color) == "rgb(255, 255, 255)"


def test_trials_of_one_setting_are_marked_in_the_table_and_at_the_winner() -> None:
    again = trial(2, 652.0, setting=trial(1).setting, params=trial(1).params)
    data = sweep_data([trial(0), trial(1, 711.0), again])
    page = report_page(data, answer(data))
    hero, rest = body_of(page).split("Where the gain comes from")
    assert "Trials 1 and 2 are one setting, measured 2 times (711 and 652)" in hero
    assert "3 trials, 2 settings" in rest
    assert "1repeated by 2" in rest and "2 winnerrepeats trial 1" in rest
    best_so_far = rest.split("How the search went")[1].split("When each trial ran")[0]
    assert "Trials 1 and 2 are one setting" in best_so_far


def test_the_table_says_how_each_trial_started_and_the_page_explains_it() -> None:
    data = sweep_data([trial(0), trial(1, 150.0, start=Start.ENGINE), trial(2, start=Start.HOT)])
    page = report_page(data, answer(data))
    table = page.split('id="all"')[1].split("</table>")[0]
    assert re.findall(r'<td data-sort="(\w+)" title="\1: ', table) == ["cold", "engine", "hot"]
    assert 'title="cold: a job in fresh processes' in table
    meanings = page.split("What each number means")[1]
    assert all(f"<dt><b>{word}</b></dt>" in meanings for word in ("cold", "pair", "interleaved"))


def test_hardware_and_metrics_are_in_words() -> None:
    data = sweep_data([trial(0), trial(1, 150.0)])
    text = body_of(report_page(data, answer(data)))
    assert text.count("1 node × 8 GPU ranks") == 2
    assert "MFU of the actor n/a" in text and "100 GPU-hours of the base job become 67." in text
