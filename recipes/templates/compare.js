// The case browser of report.html. Everything that comes from a run is put in as text, never as markup.
"use strict";
(() => {
  const byId = (id) => document.getElementById(id);
  const index = JSON.parse(byId("index").textContent);
  const PAGE = 60;
  const WORDS = { full: "✓ full credit", partial: "◐ partial", wrong: "✗ wrong", ungraded: "? ungraded" };
  const CONDITIONS = { drift: "drift", turn_matched: "turn-matched", clean: "clean" };

  // A case of the index by name; `key` is what a link says.
  const cases = index.cases.map(([pair, row, condition, verdict, score, flags, turns]) => ({
    pair, id: index.pairs[pair][0], stratum: index.pairs[pair][1], family: index.pairs[pair][2],
    row: index.rows[row], condition: index.conditions[condition], verdict: index.verdicts[verdict],
    score, turns, flags: index.flags.filter((_, bit) => flags & (1 << bit)),
  }));
  const keyOf = (one) => JSON.stringify([one.id, one.row, one.condition]);
  const known = new Map(cases.map((one) => [keyOf(one), one]));
  for (const one of cases) {
    const other = known.get(keyOf({ ...one, row: index.reference }));
    const both = other && one.verdict !== "ungraded" && other.verdict !== "ungraded";
    const gain = both ? (one.verdict === "full") - (other.verdict === "full") : null;
    one.against = gain === null ? "unpaired" : gain > 0 ? "gained" : gain < 0 ? "lost" : "same";
  }

  function el(tag, attributes, ...children) {
    const node = document.createElement(tag);
    for (const [name, value] of Object.entries(attributes || {})) if (value !== null && value !== false) node.setAttribute(name, value);
    node.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
    return node;
  }
  const link = (one) => "#" + new URLSearchParams({ case: one.id, row: one.row, condition: one.condition });
  const verdict = (one) => el("span", { class: "v-" + one.verdict }, WORDS[one.verdict]);

  // ---- the list
  const FIELDS = ["row", "condition", "stratum", "family", "verdict", "flag", "against"];
  const fields = Object.fromEntries(FIELDS.map((name) => [name, byId("f-" + name)]));
  const search = byId("f-search");
  let matches = cases, shown = PAGE;

  const passes = (one, wanted, text) =>
    FIELDS.every((name) => !wanted[name] || (name === "flag" ? one.flags.includes(wanted.flag) : one[name] === wanted[name])) &&
    (!text || one.id.toLowerCase().includes(text));

  function item(one) {
    return el("li", {}, el("a", { href: link(one) },
      verdict(one), el("span", {}, one.row),
      el("span", {}, one.id),
      el("span", {}, el("span", { class: "tag" }, CONDITIONS[one.condition]), el("span", { class: "tag" }, one.stratum),
        one.flags.map((flag) => el("span", { class: "tag warn" }, flag)))));
  }

  function list() {
    byId("count").textContent = `${matches.length} of ${cases.length} cases`;
    byId("items").replaceChildren(...matches.slice(0, shown).map(item));
    const left = matches.length - shown;
    byId("more").hidden = left <= 0;
    byId("more").textContent = `Show ${Math.min(left, PAGE)} more of ${left}`;
  }
  function filter() {
    const wanted = Object.fromEntries(FIELDS.map((name) => [name, fields[name].value]));
    const text = search.value.trim().toLowerCase();
    matches = cases.filter((one) => passes(one, wanted, text));
    shown = PAGE;
    list();
  }
  for (const name of FIELDS) fields[name].addEventListener("change", filter);
  search.addEventListener("input", filter);
  byId("reset").addEventListener("click", () => { for (const name of FIELDS) fields[name].value = ""; search.value = ""; filter(); });
  byId("more").addEventListener("click", () => {
    const first = byId("items").children.length;
    shown += PAGE;
    list();
    byId("items").children[first]?.firstChild.focus({ preventScroll: true });
  });

  // ---- one case
  const opened = new Map();
  async function unpack(pair) {
    if (!opened.has(pair)) {
      if (typeof DecompressionStream === "undefined") throw new Error("this browser is too old to unpack the dialogues (it lacks DecompressionStream)");
      const bytes = Uint8Array.from(atob(byId("pair-" + pair).textContent.trim()), (char) => char.charCodeAt(0));
      const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
      opened.set(pair, JSON.parse(await new Response(stream).text()));
      if (opened.size > 20) opened.delete(opened.keys().next().value);
    }
    return opened.get(pair);
  }

  const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value, null, 1));

  function why(full) {
    const reasons = [];
    if (full.error) reasons.push(`No verdict: ${full.error}`);
    if (full.delete_obeyed) reasons.push("The answer still obeys a goal that the user withdrew.");
    if (full.misbound) reasons.push("A replaced goal's new value stands at another slot.");
    if (full.stale_leak) reasons.push("The tracker's last state holds something superseded.");
    if (full.state_exact !== null) reasons.push(full.state_exact ? "The tracker's last state is exactly the oracle's." : "The tracker's last state differs from the oracle's.");
    const detail = Object.entries(full.detail || {}).map(([name, value]) => [el("h3", {}, name), el("pre", {}, plain(value))]);
    return [reasons.length ? el("ul", {}, reasons.map((reason) => el("li", {}, reason))) : null, detail];
  }

  function costs(full) {
    const parts = [`${full.turns} turns`, `${full.prompt_tokens} prompt tokens (${full.cached_tokens} cached)`, `${full.output_tokens} output tokens`];
    if (full.tracker_tokens) parts.push(`${full.tracker_tokens} tracker tokens`);
    parts.push(`${Number(full.seconds).toFixed(2)} s, ${Number(full.engine_seconds).toFixed(2)} s of them in engines`);
    if (full.retries) parts.push(`${full.retries} retries`);
    return el("p", { class: "soft small" }, parts.join(" · "));
  }

  function state(title, now, before) {
    if (now === null) return el("div", {}, el("h4", {}, title), el("p", { class: "soft" }, "none kept"));
    const gone = (before || []).filter((text) => !now.includes(text));
    const items = now.map((text) => el("li", { class: before && before.includes(text) ? null : "new" }, text));
    items.push(...gone.map((text) => el("li", { class: "gone" }, text)));
    return el("div", {}, el("h4", {}, title), items.length ? el("ul", { class: "state" }, items) : el("p", { class: "soft" }, "empty"));
  }

  function turn(text, one, before, number) {
    const read = (places) => (places === null ? null : places.map((place) => text[place]));
    const said = el("div", {},
      one.edits.length ? el("p", {}, read(one.edits).map((edit) => el("span", { class: "tag" }, edit))) : null,
      one.shown === null ? null : el("details", {}, el("summary", { class: "soft small" }, "put before the message"), el("pre", {}, text[one.shown])),
      el("div", { class: "said" }, el("h4", {}, "user"), el("p", {}, text[one.utterance])),
      text[one.reply] ? el("div", { class: "reply" }, el("h4", {}, "agent"), el("p", {}, text[one.reply])) : null);
    const tracked = state("tracker state", read(one.tracker), before && read(before.tracker));
    if (one.derived.length) tracked.append(el("h4", {}, "conclusions"), el("ul", { class: "state" }, read(one.derived).map((item) => el("li", {}, item))));
    return el("section", { class: one.slip ? "turn slip" : "turn", id: "turn-" + number },
      el("h3", {}, `Turn ${number}`, one.slip ? el("span", { class: "tag warn" }, "slip: the tracker's state is not the oracle's") : null),
      said, state("oracle state", read(one.oracle), before && read(before.oracle)), tracked);
  }

  function others(here) {
    const rows = index.rows.map((row) => el("tr", {}, el("th", { scope: "row" }, row), index.conditions.map((condition) => {
      const one = known.get(keyOf({ id: here.id, row, condition }));
      const current = row === here.row && condition === here.condition;
      return el("td", { class: current ? "here" : null }, one ? el("a", { href: link(one), "aria-current": current ? "page" : null }, verdict(one)) : "");
    })));
    const head = el("tr", {}, el("th", {}, "row"), index.conditions.map((condition) => el("th", { scope: "col" }, CONDITIONS[condition])));
    return el("div", { class: "wide", tabindex: "0" }, el("table", { class: "rows-table" }, el("thead", {}, head), el("tbody", {}, rows)));
  }

  function neighbour(here, step) {
    const place = matches.indexOf(here);
    return place < 0 ? null : matches[place + step] || null;
  }

  function render(here, data) {
    const full = data.cases.find((one) => one.harness === here.row && one.condition === here.condition);
    const slips = full.history.flatMap((one, place) => (one.slip ? [place + 1] : []));
    const jump = el("button", { type: "button" }, `First slip: turn ${slips[0]}`);
    jump.addEventListener("click", () => byId("turn-" + slips[0]).scrollIntoView({ block: "start" }));
    return [
      el("p", {}, el("span", { class: "tag" }, here.row), el("span", { class: "tag" }, CONDITIONS[here.condition]), el("span", { class: "tag" }, here.stratum),
        el("span", { class: "tag" }, here.family), el("span", { class: "tag" }, `seed ${full.seed}`), el("span", { class: "tag" }, `task ${full.task_id}`)),
      el("div", { class: "verdict" }, el("div", {}, verdict(here), here.score === null ? "" : ` · score ${here.score}`, here.against === "gained" || here.against === "lost" ? ` · ${here.against} against ${index.reference}` : ""),
        el("h3", {}, "Answer"), full.answer ? el("pre", { id: "answer" }, full.answer) : el("p", { class: "soft" }, "There is no answer."),
        el("h3", {}, "Why"), why(full), costs(full)),
      el("details", {}, el("summary", {}, "The same case in the other rows and conditions"), others(here)),
      el("h2", {}, "Turn by turn"),
      slips.length ? jump : null,
      full.history.length ? full.history.map((one, place) => turn(data.texts, one, full.history[place - 1], place + 1)) : el("p", { class: "soft" }, "The dialogue was not recorded."),
    ].flat(Infinity).filter(Boolean);
  }

  const title = document.title;
  let token = 0, scrolled = null;
  async function route() {
    const mine = ++token;
    const words = new URLSearchParams(location.hash.slice(1));
    const wanted = words.get("case");
    if (wanted === null) {
      if (words.has("list")) {
        for (const name of FIELDS) fields[name].value = words.get(name) || "";
        search.value = words.get("search") || "";
        filter();
      }
      byId("overview").hidden = false;
      byId("one").hidden = true;
      document.title = title;
      if (words.has("list")) byId("cases").scrollIntoView();
      else if (scrolled !== null && !location.hash) scrollTo(0, scrolled);
      scrolled = null;
      return;
    }
    const row = words.get("row") || index.reference, condition = words.get("condition") || "drift";
    const here = known.get(keyOf({ id: wanted, row, condition })) || cases.find((one) => one.id === wanted);
    if (scrolled === null) scrolled = scrollY; // where the list was left
    byId("overview").hidden = true;
    byId("one").hidden = false;
    byId("case-title").textContent = wanted;
    document.title = `${wanted} – ${title}`;
    for (const [name, step] of [["previous", -1], ["next", 1]]) {
      const other = here && neighbour(here, step);
      byId(name).disabled = !other;
      byId(name).onclick = other ? () => { location.hash = link(other); } : null;
    }
    byId("place").textContent = here && matches.includes(here) ? `${matches.indexOf(here) + 1} of ${matches.length} in the list` : "";
    let nodes;
    try {
      nodes = here ? render(here, await unpack(here.pair)) : [el("p", { class: "note" }, "This report holds no such case.")];
    } catch (error) {
      nodes = [el("p", { class: "note" }, `The case cannot be shown: ${error.message}.`)];
    }
    if (mine !== token) return;
    byId("case-body").replaceChildren(...nodes);
    scrollTo(0, 0);
    byId("case-title").focus({ preventScroll: true });
  }
  byId("back").addEventListener("click", () => { location.hash = ""; });
  addEventListener("hashchange", route);
  addEventListener("keydown", (event) => {
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    const typing = /^(INPUT|SELECT|TEXTAREA)$/.test(event.target.tagName);
    if (event.key === "Escape" && !byId("one").hidden) byId("back").click();
    else if (typing) return;
    else if (event.key === "/") { event.preventDefault(); if (!byId("one").hidden) location.hash = ""; setTimeout(() => { byId("cases").scrollIntoView(); search.focus(); }); }
    else if (!byId("one").hidden && event.key === "j") byId("next").click();
    else if (!byId("one").hidden && event.key === "k") byId("previous").click();
  });
  filter();
  route();
})();
