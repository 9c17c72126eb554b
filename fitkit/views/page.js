// The page: a question on the left, its answer on the right. The kernel sends HTML for the slots and rows for the charts;
// nothing is computed here. While a slider moves only the quick part is asked for, the rest follows when it rests.
const CHARTS = { memory: "Memory per card", heat: "Context × requests: what fits", lines: "Requests against context" };

const REST_MS = 250; // a control rests when it has not moved for so long

function render({ model, el }) {
  let state = structuredClone(model.get("state")), busy = false, dirty = false, patience, resting = null, later = null;
  const own = model.get("own_page");
  const slots = {}, fields = {}, charts = {};
  const slot = (name, props = {}) => (slots[name] = h("div", { className: `fk-slot fk-${name}`, ...props }));
  const live = h("p", { className: "fk-live", role: "status" });
  const note = h("span", { className: "fk-note", role: "status" });
  const say = (text) => { note.textContent = text; clearTimeout(say.timer); say.timer = setTimeout(() => (note.textContent = ""), 4000); };

  // --- talking to the kernel
  const change = (part) => { Object.assign(state, part); ask(); };
  function ask() {
    if (busy) { dirty = true; return; }
    busy = true;
    waiting(REST, true);
    clearTimeout(resting);
    resting = null;
    model.send({ kind: "set", state });
    clearTimeout(patience);
    patience = setTimeout(() => say("No answer from the kernel yet. If this stays, reload the page; the address keeps your plan."), 15000);
  }
  const rest = () => { if (!busy) model.send({ kind: "rest" }); };
  // What still belongs to the question before is greyed, and its buttons rest, until its own answer is there.
  const REST = ["chips", "heatnote", "linesnote", "matrix", "others", "known"];
  const drawnWith = { heatnote: "heat", linesnote: "lines" };
  const waiting = (names, on) => {
    for (const name of names) for (const node of [slots[name], charts[drawnWith[name]]?.box]) node?.classList.toggle("fk-waiting", on);
  };
  model.on("msg:custom", (message) => {
    if (message.kind === "said") say(message.text);
    if (message.kind === "file") saveFile(message.name, message.type, message.text);
    if (message.kind === "part" && !busy) waiting(message.more ? message.done : REST, false);
    if (message.kind === "part" && message.more && !resting) rest(); // a little at a time
    if (message.kind !== "quick") return;
    clearTimeout(patience);
    busy = false;
    if (dirty) { dirty = false; ask(); } else resting = setTimeout(() => { resting = null; rest(); }, REST_MS);
  });

  // --- the question
  const add = (name, made) => (fields[name] = made).node;
  const button = (text, onclick, props = {}) => h("button", { type: "button", className: "fk-button", onclick, ...props }, text);
  const other = { count: h("input", { className: "fk-typed", inputMode: "numeric", value: "1", ariaLabel: "Number of GPUs not listed" }), gib: h("input", { className: "fk-typed", inputMode: "decimal", value: "24", ariaLabel: "Memory of a GPU not listed, GiB" }) };
  const addOther = () => { const name = `${other.count.value.trim()}x ${other.gib.value.trim()}GiB`; change({ machines: [...state.machines, name], lead: name }); };
  const more = h("details", { className: "fk-more" }, h("summary", {}, "More"),
    add("gpus", choice("gpus", "GPUs to use", change)),
    add("taken", slider("taken", "Memory already taken on each GPU", "GiB", change)),
    h("fieldset", { className: "fk-field" }, h("legend", { className: "fk-label" }, "A GPU not listed"),
      h("div", { className: "fk-row" }, other.count, "×", other.gib, "GiB", button("Add", addOther))));
  const questions = h("form", { className: "fk-form", onsubmit: (event) => event.preventDefault() },
    add("model", combobox("model", "Model", "Name of a model", (text) => change({ model: text }), true)),
    add("quant", choice("quant", "Quantization", change)),
    add("engine", segments("engine", "Engine", change)),
    add("context", slider("context", "Context", "tokens", change)),
    add("parallel", slider("parallel", "Requests at once", "", change)),
    add("kv", choice("kv", "KV cache type", change)),
    add("util", slider("util", "GPU memory utilization", "", change)),
    add("machines", machines(change, () => state)),
    add("rules", choice("rules", "Counted as", change)),
    more,
    h("div", { className: "fk-actions" },
      own ? button("Copy link", () => copyText(location.href, say)) : null,
      button("Save plan", () => model.send({ kind: "save", what: "plan" })),
      button("Load plan", () => openFile(".json,application/json", (text) => model.send({ kind: "load", text })))),
    note);
  const summary = h("summary", { className: "fk-summary" });
  const panel = h("details", { className: "fk-controls", open: true }, summary, questions);

  // --- the answer
  const section = (title, ...kids) => h("section", { className: "fk-section", ariaLabel: title }, h("h2", {}, title), ...kids);
  const chart = (name) => (charts[name] = { box: h("div", { className: `fk-chart fk-chart-${name}` }) }).box;
  const copy = button("Copy", () => copyText(model.get("command"), say, model.get("copied")), { ariaLabel: "Copy the launch command" });
  const csv = button("Download CSV", () => model.send({ kind: "save", what: "table" }));
  const folded = (title, name, ...kids) => h("details", { className: "fk-fold" }, h("summary", {}, h("h2", {}, title)), ...kids, slot(name));
  const answer = h("div", { className: "fk-answer" },
    slot("verdict"), slot("chips"),
    section(CHARTS.memory, slot("legend"), chart("memory")),
    h("div", { className: "fk-two" }, section(CHARTS.heat, slot("heatnote"), chart("heat")), section(CHARTS.lines, slot("linesnote"), chart("lines"))),
    section("Quantization × machine", slot("matrix")),
    section("How to run it", h("div", { className: "fk-run" }, slot("command"), copy)),
    section("Theory, llama.cpp and vLLM side by side", slot("others")),
    section("The table", h("div", { className: "fk-row" }, csv), slot("table")),
    folded("How we know", "known"), folded("What the words mean", "words"));
  const root = h("div", { className: "fk", lang: "en" },
    h("header", { className: "fk-header" }, h("h1", {}, "Will it fit?"), slot("about"), own ? h("button", { type: "button", className: "fk-link", onclick: otherTheme }, "Light / dark") : null),
    live, h("div", { className: "fk-body" }, panel, answer));
  el.append(root);
  root.addEventListener("click", (event) => {
    const chip = event.target.closest("[data-set]");
    if (chip) change(JSON.parse(chip.dataset.set));
  });

  // --- what the kernel says
  function showQuestion() {
    const form = model.get("form"), catalog = model.get("catalog"), errors = model.get("errors");
    fields.model.show(state.model, catalog.models);
    fields.machines.show(state, form.machines, catalog.machines);
    for (const name of ["quant", "engine", "kv", "rules", "gpus"]) fields[name].show(String(state[name]), form[name]);
    for (const name of ["context", "parallel", "util", "taken"]) fields[name].show(state[name], form[name], form.off[name]);
    for (const [name, made] of Object.entries(fields)) made.complain(errors[name]);
    summary.textContent = `${model.get("mark")} ${model.get("summary")}`.trim(); // a narrow window may show nothing else of the answer
    answer.classList.toggle("fk-stale", model.get("stale"));
    const wrong = Object.keys(errors);
    if (wrong.length) panel.open = true; // a folded form would hide the sentence
    if (wrong.includes("gpus") || wrong.includes("taken")) more.open = true;
  }
  function showSlots() {
    const html = { ...model.get("fixed_slots"), ...model.get("slots"), ...model.get("rest_slots") };
    for (const [name, node] of Object.entries(slots)) {
      if (html[name] === undefined || node.drawn === html[name]) continue;
      const inside = node.contains(document.activeElement);
      node.innerHTML = node.drawn = html[name]; // made and escaped by html.py
      if (inside) (node.querySelector("button") ?? slots.verdict.firstElementChild).focus();
    }
  }
  const spoken = () => { if (live.textContent !== model.get("status")) live.textContent = model.get("status"); };
  const rowsOf = (name) => model.get("rows_" + name); // a JSON text: comparing it is cheaper than drawing it
  function showCharts() {
    const alts = { ...model.get("alts"), ...model.get("rest_alts") };
    for (const [name, one] of Object.entries(charts)) {
      const spec = model.get("specs")[name];
      const texts = Object.fromEntries(Object.keys(spec.datasets).map((key) => [key, rowsOf(key)]));
      const fresh = Object.fromEntries(Object.entries(texts).filter(([key, text]) => one.seen?.[key] !== text).map(([key, text]) => [key, JSON.parse(text)]));
      one.seen = texts;
      if (!one.drawn) one.drawn = liveChart(one.box, spec, fresh, alts[name]);
      else if (Object.keys(fresh).length) one.drawn = one.drawn.then((live) => live.update(fresh, alts[name]).then(() => live));
    }
  }
  const datasets = Object.values(model.get("specs")).flatMap((spec) => Object.keys(spec.datasets));
  model.on("change:state", () => { if (!dirty) { state = structuredClone(model.get("state")); showQuestion(); } });
  model.on("change:form change:errors change:stale change:summary change:mark", () => { if (!dirty) showQuestion(); });
  model.on("change:slots change:rest_slots", showSlots);
  model.on("change:status", spoken);
  model.on([...new Set(datasets)].map((key) => "change:rows_" + key).join(" "), () => { later ??= requestAnimationFrame(() => { later = null; showCharts(); }); });
  if (own) model.on("change:query", () => writeAddress(model.get("query")));

  showQuestion();
  showSlots();
  spoken();
  // `width: "container"` listens to window resizes only; a cell or column may get its size later.
  let shared = own && model.get("query") + location.search.replace(/[?&]?(theme|template)=[^&]*/g, "") !== "";
  const size = new ResizeObserver(() => {
    const narrow = root.clientWidth < 900;
    if (!narrow) panel.open = true;
    else if (shared) panel.open = false; // who opens a shared plan on a phone came for the answer
    shared = false;
    root.classList.toggle("fk-narrow", narrow);
    window.dispatchEvent(new Event("resize"));
  });
  requestAnimationFrame(() => { showCharts(); size.observe(root); });
  // The page's own address is the only source of state that also works with preheated kernels.
  if (own && location.search.length > 1) model.send({ kind: "asked", query: location.search.slice(1, 4000) });
  else rest();
  return () => { size.disconnect(); for (const one of Object.values(charts)) one.drawn?.then((live) => live.end()); };
}
export default { render };
