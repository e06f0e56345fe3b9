"""A headless browser for the tests of the HTML report; they are skipped where none is installed."""

import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

CHROMIUM = next(filter(None, map(shutil.which, ("chromium", "chromium-browser", "chrome"))), None)
DRIVER = shutil.which("chromedriver")
DRAWN_S = 30.0
ALL_DRAWN = (
    "return [...document.querySelectorAll('.plot')].every("
    "plot => plot.querySelector('.main-svg') && plot.clientHeight > 80)"
)


@contextmanager
def open_browser() -> Iterator[Any]:
    """Start Chromium without network; skip the test, with the reason, where there is none."""
    webdriver = pytest.importorskip("selenium.webdriver", reason="selenium is not installed")
    if CHROMIUM is None or DRIVER is None:
        pytest.skip("chromium and chromedriver are not installed")
    options = webdriver.ChromeOptions()
    options.binary_location = CHROMIUM
    for argument in ("--headless=new", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"):
        options.add_argument(argument)
    # A name that no resolver knows is all that the page may reach.
    options.add_argument("--host-resolver-rules=MAP * ~NOTFOUND")
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(DRIVER))
    try:
        driver.execute_cdp_cmd("Network.enable", {})
        yield driver
    finally:
        driver.quit()


def show(driver: Any, path: Path, *, scheme: str = "light", width: int = 1280) -> None:
    """Open a file as a user's machine would, in light or dark, and wait for its charts."""
    features = [{"name": "prefers-color-scheme", "value": scheme}]
    driver.execute_cdp_cmd("Emulation.setEmulatedMedia", {"features": features})
    driver.execute_cdp_cmd(
        "Emulation.setDeviceMetricsOverride",
        {"width": width, "height": 900, "deviceScaleFactor": 1, "mobile": False},
    )
    driver.get(path.as_uri())
    # Plotly draws after the page has loaded; a chart that never comes is the test's to say.
    deadline_s = time.monotonic() + DRAWN_S
    while not driver.execute_script(ALL_DRAWN) and time.monotonic() < deadline_s:
        time.sleep(0.05)
