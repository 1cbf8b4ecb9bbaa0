"""The anatomy page in a real browser: several models, a trace, a phone, paper, and what must not happen.

Every page is opened from disk; `opened` fails a test for console errors, violations of the policy, and requests.
"""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from playwright.sync_api import Browser, Page, expect

from flash41.config.huggingface import config_from_dict
from flash41.config.run import Profile
from flash41.tools.anatomy import dissect
from flash41.tools.anatomy_page.document import page_document
from flash41.tools.anatomy_page.html import page as html
from flash41.tools.anatomy_page.make import make_page
from flash41.tools.anatomy_page.trace_file import read_trace_file
from flash41.tools.anatomy_page.trace_view import trace_view
from flash41.tools.traces import trace
from helpers.browser import opened, until
from helpers.config_documents import patched, release_config, tiny_config, tiny_text
from helpers.golden_judge import CHECKPOINT
from helpers.models import Models
from helpers.traced_files import Arrays, save, scripted_trace

READY = "document.querySelector('.anatomy footer') !== null && document.querySelector('.sizes .figure svg') !== null"
FITS = "document.documentElement.scrollWidth <= document.documentElement.clientWidth"
PHONE = {"viewport": {"width": 360, "height": 740}, "has_touch": True, "is_mobile": True}
EVIL = "</script><script>window.pwned=1</script><img src=x onerror=window.pwned=1>"
NO_DRAFTS = {"num_nextn_predict_layers": 0, "dspark_target_layer_ids": []}
NO_ENGRAM: dict[str, Any] = {"engram_layer_ids": [], "engram_num_embeddings": []}
WINDOWS = {"compress_ratios": [0] * 10, "kv_source_layer_ids": [], "index_source_layer_ids": []}
SHAPES: dict[str, dict[str, Any]] = {
    "ten layers": {},
    "windows only": {**NO_DRAFTS, **NO_ENGRAM, **WINDOWS, "candidate_source_layer_id": -1},
    "one stream": {"hc_mult": 1},
    "no drafts, no Engram": {
        **NO_DRAFTS,
        **NO_ENGRAM,
        "compress_ratios": [0, 0, 2, 2, 2, 2, 1, 1, 1, 1],
        "candidate_source_layer_id": -1,
    },
}


@pytest.fixture(scope="module")
def release(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("release") / "page.html"
    path.write_text(html(page_document(dissect(release_config()), "DeepSeek-V4.1-Flash")), encoding="utf-8")
    return path.as_uri()


@pytest.fixture(scope="module")
def arrays() -> Arrays:
    """A real run of the golden checkpoint, with a draft block."""
    return trace(Models()(CHECKPOINT, Profile.VENDOR), tuple(range(3, 43)), draft=True)


@pytest.fixture(scope="module")
def traced(arrays: Arrays, tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("traced")
    make_page(CHECKPOINT, folder / "page.html", save(folder / "t.npz", arrays))
    return (folder / "page.html").as_uri()


def column(page: Page, layer: int) -> Any:
    return page.locator(f".column[data-layer='{layer}']")


# Any model.


@pytest.mark.parametrize("name", SHAPES)
def test_a_model_is_drawn_without_a_fault(name: str, browser: Browser, tmp_path: Path) -> None:
    changes = {f"text_config.{key}": value for key, value in SHAPES[name].items()}
    config = config_from_dict(patched(changes, json.loads(tiny_text())))
    path = tmp_path / "page.html"
    path.write_text(html(page_document(dissect(config), name)), encoding="utf-8")
    with opened(browser, path.as_uri(), READY) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(name)
        stages = config.dspark.num_stages
        expect(page.locator(".column")).to_have_count(config.num_layers + stages)
        expect(page.get_by_text("This model has no draft stages.")).to_have_count(0 if stages else 1)
        has_planes = bool(config.attention.kv_source_layer_ids)
        expect(page.get_by_text("No pool of this model can be laid out")).to_have_count(0 if has_planes else 1)
        expect(page.locator(".mode-card.absent")).to_have_count(sum(not m for m in modes_present(config)))
        assert page.evaluate(FITS)


def modes_present(config: Any) -> list[bool]:
    layers = dissect(config).topology.layers
    return [any(layer.mode.value == mode for layer in layers) for mode in ("WINDOW", "FULL", "REINDEX", "REUSE")]


# The release.


def test_the_numbers_shown_are_the_ledgers(browser: Browser, release: str) -> None:
    with opened(browser, release, READY) as page:
        page.locator(".ledger summary").click()
        total = page.locator(".ledger tr", has_text="total").locator("td").all_inner_texts()
        assert total[1:4] == [f"{count:,}" for count in (96_085, 763_205_315_794, 510_286_023_000)]
        experts = page.locator(".ledger tr").filter(has_text="routed experts").first.locator("td").all_inner_texts()
        assert experts[2] == "543,581,798,400"
        told = page.locator(".sizes .told")
        page.locator(".tile[aria-label^='Engram tables']").first.hover()
        expect(told).to_contain_text("196,613,849,600 parameters, 202,758,032,400 bytes")
        expect(page.get_by_text("Met by one token: 16,792,502,384 parameters")).to_be_visible()
        facts = page.locator(".tile-fact dd").all_inner_texts()
        assert facts[:3] == ["763.21 B", "16.79 B", "475.24 GiB"]


def test_areas_are_to_scale(browser: Browser, release: str) -> None:
    with opened(browser, release, READY) as page:
        boxes = (
            page.locator(".sizes .figure")
            .first.locator(".tile")
            .evaluate_all(
                "all => all.map((one) => [one.getAttribute('aria-label').split(',')[0], "
                "(one.width.baseVal.value + 1) * (one.height.baseVal.value + 1)])"
            )
        )
        areas = dict(boxes)
        share = areas["routed experts"] / sum(areas.values())
        assert share == pytest.approx(543_581_798_400 / 763_205_315_794, rel=0.01)
        page.get_by_label("Pool").select_option(label="bf16 rows, fp8 keys")
        heights = page.locator(".memory .figure .segment").evaluate_all(
            "all => all.map((one) => [one.getAttribute('aria-label'), one.height.baseVal.value])"
        )
        window = next(height for label, height in heights if label.startswith("window rings"))
        main = next(height for label, height in heights if label.startswith("main rows, layer 20"))
        assert window / main == pytest.approx(5_242_880 / 262_144, rel=0.01)
        expect(page.locator(".memory")).to_contain_text("739,840 bytes for 256 tokens")
        expect(page.locator(".memory .statement")).to_contain_text("5,276,672 + 2,890 * tokens bytes")


def test_pointing_at_a_layer_and_going_to_it_tell_the_same(browser: Browser, release: str) -> None:
    with opened(browser, release, READY) as page:
        panel = page.locator(".layer-panel")
        column(page, 20).hover()
        expect(panel.locator("h3")).to_contain_text("Layer 20 · FULL")
        expect(panel).to_contain_text("candidate blocks: at most 2048 per token")
        expect(panel).to_contain_text("8,094,336 parameters")
        pointed = panel.inner_text()
        column(page, 24).hover()
        expect(panel.locator("h3")).to_contain_text("Layer 24 · REINDEX")
        expect(column(page, 20)).to_have_class("column kin")
        column(page, 19).focus()
        page.keyboard.press("ArrowRight")
        expect(column(page, 20)).to_be_focused()
        assert panel.inner_text() == pointed
        page.keyboard.press("End")
        expect(panel.locator("h3")).to_contain_text("Layer mtp.2 · WINDOW")
        page.keyboard.press("Home")
        expect(panel.locator("h3")).to_contain_text("Layer 0 · WINDOW")
        assert page.locator(".column[tabindex='0']").count() == 1


def test_the_forward_follows_the_layer(browser: Browser, release: str) -> None:
    with opened(browser, release, READY) as page:
        names = page.locator(".block .step strong")
        page.get_by_label("Layer shown").select_option("1")
        assert names.all_inner_texts()[:3] == ["Engram rows", "Engram wkv", "Engram gate"]
        page.get_by_label("Layer shown").select_option("20")
        assert "candidate blocks" in names.all_inner_texts()
        expect(page.locator(".layer-panel h3")).to_contain_text("Layer 20")
        expect(page.locator(".block .step", has_text="wo_a").locator("code")).to_have_text("[T, 8192]")


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_can_be_told_from_its_ground(scheme: str, browser: Browser, release: str) -> None:
    with opened(browser, release, READY, color_scheme=scheme) as page:
        weakest = page.evaluate(
            CONTRAST,
            [".lead", ".cell.mode", ".fact dt", ".verb.writes", ".verb.reads", ".where", "code", "h3", ".told"],
        )
        assert min(weakest.values()) >= 4.5, weakest


CONTRAST = """(selectors) => {
  const parsed = (text) => text.match(/[\\d.]+/g).map(Number);
  const linear = (v) => (v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const light = (colour) => colour.slice(0, 3).map((v) => linear(v / 255))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const ground = (one) => {
    for (let at = one; at; at = at.parentElement) {
      const [r, g, b, a = 1] = parsed(getComputedStyle(at).backgroundColor);
      if (a > 0) return [r, g, b];
    }
    return [255, 255, 255];
  };
  const ratio = (one) => {
    const [a, b] = [light(parsed(getComputedStyle(one).color)), light(ground(one))].sort((x, y) => y - x);
    return (a + 0.05) / (b + 0.05);
  };
  const all = (selector) => [...document.querySelectorAll(selector)].filter((one) => !one.closest(".absent"));
  return Object.fromEntries(selectors.map((selector) => [selector, Math.min(...all(selector).map(ratio))]));
}"""


# A trace.


def test_the_rows_of_a_chosen_token_are_the_traces(browser: Browser, traced: str, arrays: Arrays) -> None:
    with opened(browser, traced, READY) as page:
        slider = page.get_by_role("slider", name="Token")
        expect(page.locator(".token-name")).to_contain_text("position 39 of 40")
        slider.focus()
        page.keyboard.press("ArrowLeft")
        expect(page.locator(".token-name")).to_contain_text("position 38 of 40")
        for layer, owner in ((2, 2), (5, 4), (8, 8), (9, 8)):
            page.get_by_label("Layer shown").select_option(str(layer))
            detail = page.locator(".trace-detail")
            expect(detail.locator("h4")).to_contain_text(f"Layer {layer}")
            selected = arrays[f"trace/L{owner}.index.selected"][38]
            listed = detail.locator(".row-list").text_content()
            assert listed == " ".join(str(row) for row in selected if row >= 0)
            scores = arrays[f"trace/L{owner}.index.scores"][38]
            best = max(selected, key=lambda row: (scores[row], -row))
            first = detail.locator("tbody tr").first.locator("td").all_inner_texts()
            assert first[0] == str(best)
            assert float(first[1]) == pytest.approx(scores[best], rel=1e-3)
        expect(page.locator("[data-fact=window]")).to_contain_text("positions 31 to 38: 8 rows")
        experts = arrays["trace/L9.router.ids"][38]
        shown = page.locator("[data-fact=experts] dd").inner_text()
        assert [int(part.split(":")[0]) for part in shown.split("   ")] == experts.tolist()


def test_what_came_out_and_the_engram_rows_are_the_traces(browser: Browser, traced: str, arrays: Arrays) -> None:
    with opened(browser, traced, READY) as page:
        best = np.argsort(-arrays["logits"][39], kind="stable")[:5]
        shown = page.locator(".best .bar-label").all_inner_texts()
        assert [int(text.rsplit("(", 1)[1].rstrip(")")) for text in shown] == best.tolist()
        page.get_by_label("Layer shown").select_option("1")
        rows = page.locator("[data-fact='Engram rows'] dd").inner_text().replace(",", "").split("   ")
        assert [int(row) for row in rows] == arrays["trace/L1.engram.rows"][39].tolist()
        comb = page.locator(".mix .heat-map").first.locator("text").all_text_contents()
        assert [float(text) for text in comb] == pytest.approx(arrays["trace/L1.attn.comb"][39].reshape(-1), abs=0.006)
        drafts = page.locator("tr", has_text="(").filter(has_text="%").locator("td:nth-child(2)").all_inner_texts()
        ids = [int(text.rsplit("(", 1)[1].rstrip(")")) for text in drafts][-5:]
        assert ids == arrays["trace/draft.ids"].tolist()


def test_the_map_names_position_and_layer(browser: Browser, traced: str) -> None:
    with opened(browser, traced, READY) as page:
        figure = page.locator(".trace-map .figure")
        figure.scroll_into_view_if_needed()
        box = figure.bounding_box()
        assert box is not None
        page.mouse.move(box["x"] + box["width"] - 3, box["y"] + 4 + 13 * 6 + 5)
        expect(page.locator(".trace-map .told")).to_contain_text("Layer 6, position 39")
        expect(page.locator(".layer-panel h3")).to_contain_text("Layer 6")


def test_hostile_names_and_tokens_are_text(browser: Browser, tmp_path: Path) -> None:
    config = tiny_config()
    anatomy = dissect(config)
    file = read_trace_file(save(tmp_path / "t.npz", scripted_trace(config, 6)), config, anatomy.topology)
    view = trace_view(file, config, anatomy.topology, lambda _: EVIL)
    (tmp_path / "page.html").write_text(html(page_document(anatomy, EVIL, view)), encoding="utf-8")
    with opened(browser, (tmp_path / "page.html").as_uri(), READY) as page:
        expect(page.get_by_role("heading", level=1)).to_have_text(EVIL)
        expect(page.locator(".chip").first).to_have_text(EVIL)
        expect(page.locator(".token-name")).to_contain_text(EVIL)
        assert page.evaluate("window.pwned") is None
        assert page.evaluate("document.images.length") == 0
        assert page.evaluate(FITS)


# Other surfaces.


@pytest.mark.parametrize("which", ["release", "traced"])
def test_nothing_is_wider_than_a_phone(which: str, browser: Browser, request: pytest.FixtureRequest) -> None:
    with opened(browser, request.getfixturevalue(which), READY, **PHONE) as page:
        assert page.evaluate(FITS)
        page.locator(".column").last.tap()
        expect(page.locator(".layer-panel h3")).to_contain_text("Layer mtp.2")
        page.locator(".ledger summary").tap()
        assert page.evaluate(FITS)
        boxes = page.locator(".column").evaluate_all("all => all.map((one) => one.getBoundingClientRect().width)")
        assert min(boxes) >= 24


def test_paper_shows_everything(browser: Browser, traced: str) -> None:
    with opened(browser, traced, READY, viewport={"width": 720, "height": 1000}) as page:
        page.emulate_media(media="print")
        until(page, FITS)
        expect(page.locator("nav")).to_be_hidden()
        assert page.locator("details:not([open])").count() > 0
        assert len(page.pdf(format="A4", print_background=True)) > 50_000
        assert page.locator("details:not([open])").count() == 0
