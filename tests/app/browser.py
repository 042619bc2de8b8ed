"""Debian's chromium, without a screen, as a visitor of the page: what a person does there, in words.

Driven by selenium; both are optional: `apt install chromium chromium-driver`, `pip install selenium`.
"""

import json
import shutil
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from selenium import webdriver
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.remote.webelement import WebElement
from selenium.webdriver.support.ui import WebDriverWait

PATIENCE = 60
"""Seconds; the machine may be busy."""
# No sandbox: tests run as root in containers. No /dev/shm: there it is small.
FLAGS = ("--headless=new", "--no-sandbox", "--disable-dev-shm-usage", "--hide-scrollbars")


def missing_program() -> str:
    """Says which program is not installed; empty if all are."""
    missing = [name for name in ("chromium", "chromedriver") if shutil.which(name) is None]
    return f"not installed: {', '.join(missing)}" if missing else ""


class Visitor:
    """Somebody who looks at the page."""

    def __init__(self, driver: webdriver.Chrome) -> None:
        self.driver = driver

    def wait(self, condition: Callable[[], Any], hope: str) -> Any:
        """Waits until a condition holds; `hope` says in the error what did not come."""
        return WebDriverWait(self.driver, PATIENCE).until(lambda _: condition(), hope)

    def see(self, element: str, *words: str) -> str:
        """Waits until an element shows all words, and returns its text."""

        def text() -> str:
            return "".join(found.text for found in self.driver.find_elements(By.ID, element))

        self.wait(lambda: all(word in text() for word in words), f"{element} does not show {words}")
        return text()

    def see_plot(self, element: str) -> str:
        """Waits for the picture in an element, and returns its data."""

        def source() -> str | None:
            images = self.driver.find_elements(By.CSS_SELECTOR, f"#{element} img")
            return images[0].get_attribute("src") if images and images[0].is_displayed() else None

        return str(self.wait(source, f"{element} shows no plot"))

    def wait_until_idle(self) -> None:
        """Waits until nothing is computed any more; a number typed digit by digit is measured for each."""

        def idle() -> bool:
            words = self.driver.find_element(By.TAG_NAME, "body").text
            return "processing |" not in words and "queue:" not in words

        for _ in range(2):
            self.wait(idle, "something is still computed")
            time.sleep(1)

    def open_tab(self, name: str) -> None:
        """Clicks a tab."""
        self.visible(f"//button[@role='tab'][contains(., '{name}')]").click()

    def type_number(self, label: str, number: int | None) -> None:
        """Types a number beside a slider, or deletes the one that is there."""
        box = self.visible(f"//input[@type='number'][contains(@aria-label, '{label}')]")
        box.send_keys(Keys.CONTROL, "a")
        box.send_keys(Keys.BACKSPACE if number is None else f"{number}{Keys.TAB}")

    def choose(self, menu: str, name: str) -> None:
        """Picks from a menu."""
        box = self.visible(f"//input[@aria-label='{menu}']")
        box.click()
        self.visible(f"//ul//li[contains(., '{name}')]").click()

    def upload(self, element: str, path: Path) -> None:
        """Clears a picture and uploads another."""
        self.driver.find_element(By.CSS_SELECTOR, f"#{element} button[aria-label='Remove Image']").click()
        chooser = f"#{element} input[type=file]"
        self.wait(lambda: self.driver.find_elements(By.CSS_SELECTOR, chooser), "nothing to upload with")
        self.driver.find_element(By.CSS_SELECTOR, chooser).send_keys(str(path))

    def visible(self, path: str) -> WebElement:
        """Waits for the first visible element of an XPath."""

        def found() -> WebElement | None:
            elements = self.driver.find_elements(By.XPATH, path)
            return next((element for element in elements if element.is_displayed()), None)

        return self.wait(found, f"there is no {path}")

    def asked_addresses(self) -> list[str]:
        """Returns the addresses of all requests that the browser has made for the page."""
        messages = [json.loads(entry["message"])["message"] for entry in self.driver.get_log("performance")]
        return [
            message["params"]["request"]["url"]
            for message in messages
            if message["method"] == "Network.requestWillBeSent"
        ]


@contextmanager
def visit(address: str, width: int = 1300, height: int = 1500) -> Iterator[Visitor]:
    """Opens a page in a browser of its own."""
    options = webdriver.ChromeOptions()
    options.binary_location = str(shutil.which("chromium"))
    for flag in (*FLAGS, f"--window-size={width},{height}"):
        options.add_argument(flag)
    options.set_capability("goog:loggingPrefs", {"performance": "ALL"})
    driver = webdriver.Chrome(options=options, service=webdriver.ChromeService(shutil.which("chromedriver")))
    try:
        driver.get(address)
        yield Visitor(driver)
    finally:
        driver.quit()
