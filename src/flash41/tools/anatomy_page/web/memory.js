// PAGE and STATE to one scale, and the smaller one again, magnified.

const TALLEST = 300;
const BAR = 132;

function segments(parts, total, x, y, width, height, tell) {
  let at = y;
  return parts.flatMap((part) => {
    const tall = (part.bytes / total) * height;
    const look = svg(
      "rect",
      {
        x,
        y: at.toFixed(3),
        width,
        height: Math.max(tall, 0).toFixed(3),
        class: `segment ${part.kind}`,
        role: "img",
      tabindex: "0",
        "aria-label": `${part.label}, ${whole(part.bytes)} bytes, ${part.note}`,
      },
      svg("title", {}, `${part.label}: ${whole(part.bytes)} B, ${part.note}`),
    );
    look.addEventListener("pointerenter", () => tell(part));
    look.addEventListener("focus", () => tell(part));
    const lines = Array.from({ length: Math.max(0, (part.stripes ?? 1) - 1) }, (_, line) => {
      const level = (at + ((line + 1) / part.stripes) * tall).toFixed(2);
      return svg("line", { x1: x, x2: x + width, y1: level, y2: level, class: "stripe" });
    });
    at += tall;
    return [look, ...lines];
  });
}

function drawPool(pool, tell) {
  return figure("PAGE and STATE to one scale", (width) => {
    const most = Math.max(pool.page_bytes, pool.state_bytes);
    const isNarrow = width < 520;
    const bar = isNarrow ? 72 : BAR;
    const tall = { page: (pool.page_bytes / most) * TALLEST, state: (pool.state_bytes / most) * TALLEST };
    const base = TALLEST + 26;
    const small = pool.page_bytes <= pool.state_bytes ? "page" : "state";
    const left = 1;
    const second = left + bar + (isNarrow ? 14 : 30);
    const third = second + bar + (isNarrow ? 40 : 90);
    const wide = Math.max(60, width - third - 1);
    const name = (x, text, note) => [
      svg("text", { x, y: base + 16, class: "strong" }, text),
      svg("text", { x, y: base + 32, class: "faint" }, note),
    ];
    const smallX = small === "page" ? second : left;
    const times = most / pool[`${small}_bytes`];
    const parts = [
      ...segments(pool.state, pool.state_bytes, left, base - tall.state, bar, tall.state, tell),
      ...segments(pool.page, pool.page_bytes, second, base - tall.page, bar, tall.page, tell),
      ...name(left, "STATE", sized(pool.state_bytes)),
      ...name(second, "PAGE", sized(pool.page_bytes)),
    ];
    if (times > 1.5) {
      parts.push(
        svg("path", {
          d: `M${smallX + bar} ${base - tall[small]}L${third} ${base - TALLEST}M${smallX + bar} ${base}L${third} ${base}`,
          class: "lens",
        }),
        ...segments(pool[small], pool[`${small}_bytes`], third, base - TALLEST, wide, TALLEST, tell),
        ...name(third, `${small.toUpperCase()} x ${times.toFixed(1)}`, "the same, magnified"),
      );
      let at = base - TALLEST;
      for (const part of pool[small]) {
        const own = (part.bytes / pool[`${small}_bytes`]) * TALLEST;
        if (own > 15 && wide > 150)
          parts.push(
            svg(
              "text",
              { x: third + 8, y: at + own / 2 + 4, class: "on-segment" },
              `${part.label} \u00b7 ${whole(part.bytes)} B`,
            ),
          );
        at += own;
      }
    }
    return { parts, height: base + 40 };
  });
}

function drawMemory(doc) {
  const { pools, faults, block_size: tokens } = doc.memory;
  const notes = faults.length
    ? h(
        "ul",
        { class: "faults" },
        faults.map((fault) => h("li", {}, `Not shown: ${fault}`)),
      )
    : null;
  if (!pools.length)
    return [h("p", {}, "No pool of this model can be laid out, so there is no PAGE and no STATE to draw."), notes];
  const body = h("div", {});
  const name = (pool) =>
    `${pool.main} rows, ${pool.index} keys${pool.draft_tokens ? `, drafts of ${pool.draft_tokens}` : ""}`;
  const show = (index) => {
    const pool = pools[index];
    const told = h(
      "p",
      { class: "told", "aria-live": "polite" },
      "Every segment says what it is: point at it, or go to it with Tab.",
    );
    const tell = (part) => (told.textContent = `${part.label}: ${whole(part.bytes)} bytes; ${part.note}.`);
    const rows = (parts, total) => [
      ...parts.map((part) => [part.label, whole(part.bytes), part.note]),
      ["total", whole(total), ""],
    ];
    body.replaceChildren(
      h(
        "p",
        { class: "statement" },
        h("b", {}, "A request costs "),
        pool.statement,
        `; a kept image ${sized(pool.image_bytes)}; a token ${whole(pool.bytes_per_token)} bytes.`,
      ),
      drawPool(pool, tell),
      told,
      h(
        "div",
        { class: "columns" },
        h(
          "div",
          {},
          h("h3", {}, `PAGE: ${whole(pool.page_bytes)} bytes for ${tokens} tokens`),
          table(["part", "bytes", "holds"], rows(pool.page, pool.page_bytes), [1]),
        ),
        h(
          "div",
          {},
          h("h3", {}, `STATE: ${whole(pool.state_bytes)} bytes per request`),
          table(["part", "bytes", "holds"], rows(pool.state, pool.state_bytes), [1]),
        ),
      ),
      h("h3", {}, "What a request of that length holds"),
      table(
        ["tokens", "bytes", ""],
        pool.requests.map((one) => [whole(one.num_tokens), whole(one.bytes), sized(one.bytes)]),
        [0, 1, 2],
      ),
    );
  };
  const picker = h(
    "label",
    {},
    "Pool ",
    h(
      "select",
      { "data-pick": "pool", change: (event) => show(Number(event.target.value)) },
      pools.map((pool, index) => h("option", { value: index }, name(pool))),
    ),
  );
  show(0);
  return [picker, body, notes];
}
