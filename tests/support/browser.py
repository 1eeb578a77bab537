"""Headless Chromium, driven as a person would: typing, clicking, keys."""

import shutil
import tempfile
from contextlib import contextmanager

from selenium import webdriver
from selenium.webdriver.chrome.service import Service
from selenium.webdriver.common.by import By
from selenium.webdriver.common.keys import Keys
from selenium.webdriver.support.ui import Select, WebDriverWait

# Without the last ones, Chromium calls its maker's hosts.
FLAGS = ("headless", "no-sandbox", "disable-gpu", "disable-quic", "no-first-run", "disable-background-networking",
         "disable-component-update", "disable-sync", "force-device-scale-factor=1", "lang=en-US")  # fmt: skip


class Page:
    """The page of a server in a browser."""

    def __init__(self, driver, url):
        self.driver, self.url = driver, url

    def open(self, language="en", **place):
        """Open the page anew, with a language and (model, tab)."""
        self.driver.get("about:blank")
        self.driver.get(f"{self.url}/#" + "&".join(f"{key}={value}" for key, value in place.items()))
        self.wait(lambda: self.all("[role=tab]"))
        self.choose("language", language)

    def all(self, selector):
        return self.driver.find_elements(By.CSS_SELECTOR, selector)

    def one(self, selector):
        return self.driver.find_element(By.CSS_SELECTOR, selector)

    def texts(self, selector):
        return [element.text for element in self.all(selector)]

    def choose(self, name, value):
        Select(self.one(f"#{name}")).select_by_value(value)

    def type(self, name, text):
        field = self.one(f"#{name}")
        field.clear()
        field.send_keys(text)

    def run(self, *selectors):
        """Press the button, and wait for the answer (all of these elements)."""
        self.one("#run").click()
        self.wait(lambda: self.is_idle() and all(self.all(f"#output {selector}") for selector in selectors))

    def is_idle(self):
        return self.one("#output").get_attribute("aria-busy") == "false"

    def wait(self, condition):
        return WebDriverWait(self.driver, 20, 0.02).until(lambda _: condition())

    def press(self, *keys):
        self.driver.switch_to.active_element.send_keys(*keys)


@contextmanager
def open_browser(width=1100, height=900):
    """A driver of Debian's Chromium, with an empty profile."""
    paths = {name: shutil.which(name) for name in ("chromium", "chromedriver")}
    assert all(paths.values()), "Chromium is not installed; run `make test-browser`"
    options = webdriver.ChromeOptions()
    options.binary_location = paths["chromium"]
    options.set_capability("goog:loggingPrefs", {"browser": "ALL"})
    with tempfile.TemporaryDirectory() as profile:
        for flag in (*FLAGS, f"user-data-dir={profile}", f"window-size={width},{height}"):
            options.add_argument(f"--{flag}")
        driver = webdriver.Chrome(options, Service(paths["chromedriver"]))
        try:
            yield driver
        finally:
            driver.quit()


__all__ = ["By", "Keys", "Page", "Select", "open_browser"]
