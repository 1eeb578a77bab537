"""Every task of the page is typed, clicked and read, in both languages; errors, keys, keyboard, phone and colours."""

import base64
import io
import json

import pytest

import bertsmith
from bertsmith.serving.app import Access
from tests.support.servers import run_server

pytestmark = pytest.mark.browser
pytest.importorskip("selenium", reason="make test-browser installs it")
from tests.support.browser import Keys, Page  # noqa: E402

LANGUAGES = ("en", "zh")
TEXT, OTHER = "she was here", "the way of the king"
TABS = {
    "en": {"predict": "Classify", "tag": "Find entities", "answer": "Answer", "fill": "Fill masks", "nearest": "Nearest"},
    "zh": {"predict": "分类", "tag": "实体识别", "answer": "问答", "fill": "填空", "nearest": "检索"},
}


@pytest.fixture(params=LANGUAGES)
def language(request):
    return request.param


@pytest.fixture
def load(folders):
    return lambda kind: bertsmith.load(folders[kind])


def test_classify_with_word_attribution(page, language, load):
    page.open(language, model="classify")
    assert page.one("[aria-selected=true]").text == TABS[language]["predict"]
    page.type("text", TEXT)
    page.run(".answer", ".word")
    answer = load("classify")(TEXT)
    assert page.one(".answer").text == answer["label"]
    rows = [row.split("\n") for row in page.texts(".bars li")]
    assert [row[0] for row in rows] == sorted(answer["scores"], key=lambda label: -answer["scores"][label])
    assert float(rows[0][1].split()[0]) == pytest.approx(100 * answer["score"], abs=0.06)
    assert page.texts(".word") == TEXT.split()
    without = [load("classify")(text)["scores"][answer["label"]] for text in ("was here", "she here", "she was")]
    titles = [float(word.get_attribute("title").replace("−", "-")) for word in page.all(".word")]
    assert titles == pytest.approx([answer["score"] - score for score in without], abs=0.0006)
    page.one("#words").click()
    page.run(".answer")
    assert not page.all(".word")


def test_a_score_of_a_pair(page, language, load):
    page.open(language, model="similar", tab="similar")
    page.type("text", TEXT), page.type("text_b", OTHER)
    page.run(".answer", ".word")
    score = load("similar")(TEXT, OTHER)["score"]
    assert float(page.one(".answer").text.replace("：", ": ").split()[-1]) == pytest.approx(score, abs=0.0006)
    assert page.texts(".word") == [*TEXT.split(), *OTHER.split()]


def test_entities_are_marked_in_the_text(page, language, load):
    text = "𝒜da was in the 天 of 地."  # the first character has two UTF-16 units
    page.open(language, model="tag")
    assert page.one("[aria-selected=true]").text == TABS[language]["tag"]
    page.type("text", "placeholder")
    page.driver.execute_script("arguments[0].value = arguments[1]", page.one("#text"), text)  # the driver types no such letter
    page.run(".text")
    entities = load("tag")(text)
    marks = [mark.text.removesuffix("PER").strip() for mark in page.all("mark")]
    assert marks == [entity["word"] for entity in entities] and marks
    assert page.one(".text").text.replace("PER", "") == text


def test_the_answer_is_marked_in_its_context(page, language, load):
    question, context = "who was here", "Then she was here, and the king of the way was not."
    page.open(language, model="answer")
    assert page.one("[aria-selected=true]").text == TABS[language]["answer"]
    page.type("question", question), page.type("context", context)
    page.run("mark")
    assert page.one("mark").text == load("answer")(question=question, context=context)["answer"]
    assert page.one(".text").text == context


def test_an_option_is_chosen(page, language, load):
    page.open(language, model="choose")
    page.type("context", TEXT), page.type("options", "she\nthe king")
    page.run(".answer")
    options = ["she", "the king"]
    assert page.one(".answer").text == options[load("choose")(context=TEXT, options=options)["choice"]]


def test_masks_are_filled_by_clicks(page, language, load):
    page.open(language, model="bert")
    assert page.one("[aria-selected=true]").text == TABS[language]["fill"]
    page.type("text", "the ")
    page.one("#add-mask").click()
    page.press(" of [MASK]")
    assert page.one("#text").get_attribute("value") == "the [MASK] of [MASK]"
    page.type("top_k", "3")
    page.run(".masks button")
    expected = load("bert").fill("the [MASK] of [MASK]", 3)
    columns = [[row.split("\n")[0] for row in page.texts(f".masks > :nth-child({n}) li")] for n in (1, 2)]
    assert columns == [[row["token_str"] for row in rows] for rows in expected]
    page.all(".masks > :nth-child(2) button")[1].click()
    token = expected[1][1]["token_str"]
    filled = f"the [MASK] of{token[2:] if token.startswith('##') else ' ' + token}"
    page.wait(lambda: page.is_idle() and len(page.all(".masks > div")) == 1)
    assert page.one("#text").get_attribute("value") == filled
    assert [row.split("\n")[0] for row in page.texts(".masks li")] == [row["token_str"] for row in load("bert").fill(filled, 3)]


def test_similarity_as_a_matrix(page, language, load):
    page.open(language, model="bert", tab="similarity")
    page.type("texts", f"{TEXT}\n\n{OTHER}\nthe king")
    page.run("td")
    values = [float(value) for value in page.texts(".matrix tbody td")]
    assert len(values) == 9 and values[0] == values[4] == 1
    assert values[1] == pytest.approx(load("bert").nearest(TEXT, [OTHER])[0]["score"], abs=0.006)
    assert page.texts(".matrix tbody th")[1] == f"2 · {OTHER}"


def test_nearest_documents_say_how_they_are_ranked(page, language, load):
    page.open(language, model="bert", tab="nearest")
    assert page.one("[aria-selected=true]").text == TABS[language]["nearest"]
    documents = [OTHER, TEXT, "the king"]
    page.type("query", TEXT), page.type("documents", "\n".join(documents))
    page.run(".bars li")
    assert [row.split("\n")[0] for row in page.texts(".bars li")] == [
        hit["text"] for hit in load("bert").nearest(TEXT, documents)
    ]
    assert ("cosine" if language == "en" else "余弦") in page.one("#output .soft").text
    page.open(language, model="classify", tab="nearest")
    page.type("query", TEXT), page.type("documents", OTHER)
    page.run(".bars li")
    assert ("cross-encoder" if language == "en" else "交叉编码器") in page.one("#output .soft").text


def test_generation_is_streamed_and_can_be_stopped(page, language, load):
    page.open(language, model="gpt", tab="generate")
    page.type("prompt", "the"), page.type("max_new_tokens", "8")
    page.run(".generated")
    assert page.one("#output .text").text == ("the" + load("gpt").generate("the", max_new_tokens=8)["generated_text"]).strip()
    page.choose("kind", "sample")
    page.type("max_new_tokens", "2000")
    page.one("#run").click()
    page.one("#stop").click()
    assert page.is_idle() and not page.one("#stop").is_enabled()


def test_tokens(page, language, load):
    page.open(language, model="bert", tab="tokenize")
    page.type("text", TEXT)
    page.run(".tokens span")
    encoding = load("bert").tokenizer.encode(TEXT)
    assert page.texts(".tokens span") == [f"{token}\n{i}" for token, i in zip(encoding.tokens, encoding.ids, strict=True)]


def test_errors_are_said_in_words(page, language):
    page.open(language, model="bert")
    page.run(".error")
    assert page.one(".error").text == {"en": "Type a text first.", "zh": "请先输入文本。"}[language]
    page.type("text", TEXT)
    page.run(".error")
    assert page.one(".error").text.startswith({"en": "Put [MASK] where", "zh": "请在缺词的位置写上 [MASK]"}[language])
    page.type("text", "[MASK] " + "that " * 100)
    page.run(".error")
    assert page.one(".error b").text == {"en": "The text is too long", "zh": "文本太长"}[language]
    assert "103 tokens" in page.one(".error").text
    page.choose("truncate", "right")
    page.run(".masks")


def test_every_example_of_the_page_is_answered(page, language, folders):
    for model in folders:
        page.open(language, model=model)
        for tab in [tab.get_attribute("id") for tab in page.all("[role=tab]")]:
            page.one(f"#{tab}").click()
            page.one("#example").click()
            page.wait(lambda: page.is_idle() and page.one("#output").text)
            error = [text for text in page.texts(".error") if "48" not in text]  # a tiny model: longer texts are refused
            assert not error, (model, tab, error)


def test_the_keyboard_is_enough(page):
    page.open("en", model="bert", tab="similarity")
    page.driver.refresh()
    page.wait(lambda: page.all("[role=tab]"))
    page.one("body").send_keys(Keys.TAB)
    assert page.driver.switch_to.active_element.get_attribute("class") == "skip"
    tab = page.one("[aria-selected=true]")
    page.driver.execute_script("arguments[0].focus()", tab)
    page.press(Keys.ARROW_LEFT)
    assert page.driver.switch_to.active_element.get_attribute("id") == "tab-fill"
    page.press(Keys.TAB), page.press(Keys.TAB)  # the panel, its first field
    for _ in range(3):
        if page.driver.switch_to.active_element.get_attribute("id") == "text":
            break
        page.press(Keys.TAB)
    page.press("the [MASK]", Keys.CONTROL, Keys.ENTER)
    page.wait(lambda: page.all(".masks button"))


def test_the_choice_of_language_colours_and_text_stays(page):
    page.open("zh", model="bert")
    page.choose("theme", "dark")
    assert page.one("html").get_attribute("lang") == "zh-CN"
    page.driver.refresh()
    page.wait(lambda: page.all("[role=tab]"))
    assert page.one("[aria-selected=true]").text == "填空" and page.one("html").get_attribute("data-theme") == "dark"
    assert page.driver.execute_script("return getComputedStyle(document.body).backgroundColor") == "rgb(21, 22, 23)"
    page.type("text", "the [MASK]")
    page.choose("language", "en"), page.choose("theme", "auto")
    assert page.one("#text").get_attribute("value") == "the [MASK]" and page.one("#run").text == "Run"


@pytest.mark.parametrize("theme", ["light", "dark"])
@pytest.mark.parametrize("width", [360, 1200])
def test_nothing_is_wider_than_the_screen_and_text_has_contrast(page, folders, width, theme):
    """WCAG's contrast of 4.5 between text and background, of everything that is said on each panel."""
    try:
        page.driver.execute_cdp_cmd(
            "Emulation.setDeviceMetricsOverride", {"width": width, "height": 800, "deviceScaleFactor": 1, "mobile": width < 600}
        )
        for model in ("classify", "bert", "tag", "answer"):
            page.open("en", model=model)
            page.choose("theme", theme)
            for tab in [tab.get_attribute("id") for tab in page.all("[role=tab]")]:
                page.one(f"#{tab}").click()
                page.one("#example").click()
                page.wait(lambda: page.is_idle() and page.one("#output").text)
                assert page.driver.execute_script("return document.documentElement.scrollWidth") <= width, (model, tab)
                assert not (low := page.driver.execute_async_script(LOW_CONTRAST)), (model, tab, low)
    finally:
        page.driver.execute_cdp_cmd("Emulation.clearDeviceMetricsOverride", {})
        page.choose("theme", "auto")


def test_pixels_of_the_page_are_drawn(page):
    """Not a blank page: the picture has the colours of the theme."""
    image = pytest.importorskip("PIL.Image")
    page.open("en", model="bert")
    for theme, colour in (("light", (247, 247, 245)), ("dark", (21, 22, 23))):
        page.choose("theme", theme)
        picture = image.open(io.BytesIO(base64.b64decode(page.driver.get_screenshot_as_base64()))).convert("RGB")
        colours = dict((value, count) for count, value in picture.getcolors(1 << 24))
        assert colours.get(colour, 0) > 10_000 and len(colours) > 50
    page.choose("theme", "auto")


def test_a_key_is_asked_for(driver, folders):
    with run_server([folders["bert"]], access=Access(("secret",))) as client:
        page = Page(driver, f"http://127.0.0.1:{client.port}")
        driver.get(page.url)
        page.wait(lambda: page.one("#key-form").is_displayed())
        assert "API key" in page.one(".error").text
        page.type("key", "secret")
        page.one("#key-form button").click()
        page.wait(lambda: page.all("[role=tab]"))
        page.type("text", "the [MASK]")
        page.run(".masks")
        assert not page.one("#key-form").is_displayed()


def test_the_page_asks_its_own_server_only(page, client):
    page.open("en", model="bert")
    page.type("text", "the [MASK]")
    page.run(".masks")
    names = page.driver.execute_script("return performance.getEntriesByType('resource').map((entry) => entry.name)")
    assert names and all(name.startswith(page.url) for name in names), json.dumps(names)
    _, text, headers = client("/")
    assert "default-src 'none'" in headers["content-security-policy"] and "http" not in text
    assert client("/", headers={"if-none-match": headers["etag"]})[0] == 304


LOW_CONTRAST = """
const done = arguments[arguments.length - 1];
const canvas = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
const paint = (colour) => { canvas.clearRect(0, 0, 1, 1); canvas.fillStyle = colour; canvas.fillRect(0, 0, 1, 1);
  return [...canvas.getImageData(0, 0, 1, 1).data]; };
const over = ([r, g, b, a], below) => [r, g, b].map((v, i) => (v * a + below[i] * (255 - a)) / 255);
const background = (element) => { const own = paint(getComputedStyle(element).backgroundColor);
  const bar = element.parentElement?.querySelector(":scope > .bar");
  const below = element.parentElement ? background(element.parentElement) : [255, 255, 255];
  const base = over(own, below);
  return bar && bar !== element ? over(paint(getComputedStyle(bar).backgroundColor), base) : base; };
const linear = (v) => (v / 255 <= 0.04045 ? v / 255 / 12.92 : ((v / 255 + 0.055) / 1.055) ** 2.4);
const light = (colour) => { const [r, g, b] = colour.map(linear);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
const low = [];
for (const element of document.querySelectorAll("body *")) {
  const text = [...element.childNodes].filter((node) => node.nodeType === 3).map((node) => node.data.trim()).join("");
  if (!text || element.disabled || !element.checkVisibility() || element.matches("option, .skip, .hidden")) continue;
  const below = background(element), [a, b] = [light(over(paint(getComputedStyle(element).color), below)), light(below)];
  const contrast = (Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05);
  if (contrast < 4.5) low.push([text.slice(0, 30), element.className, contrast.toFixed(2)]);
}
done(low);
"""
