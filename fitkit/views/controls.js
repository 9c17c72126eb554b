// The question: native inputs with real labels. Each maker returns { node, show(value, options) }.
const h = (tag, props = {}, ...kids) => {
  const node = document.createElement(tag);
  for (const [key, value] of Object.entries(props)) {
    if (key.startsWith("on")) node.addEventListener(key.slice(2), value);
    else if (key in node && !key.includes("-") && key !== "list") node[key] = value;
    else node.setAttribute(key, value);
  }
  node.append(...kids.filter((kid) => kid !== null && kid !== undefined));
  return node;
};
let fieldCount = 0;
const grouped = (n) => Number(n).toLocaleString("en-US", { maximumFractionDigits: 2 });

// A labelled place for one control, with the sentence that says what is wrong with it.
function field(name, label, control, beside = null) {
  const id = `fk-${name}-${++fieldCount}`;
  const error = h("p", { className: "fk-error", id: id + "-error", hidden: true });
  control.id = id;
  control.setAttribute("aria-describedby", error.id);
  const node = h("div", { className: "fk-field" }, h("div", { className: "fk-label" }, h("label", { htmlFor: id }, label), beside), control, error);
  return { node, complain: (text) => complain(error, control, text) };
}

function complain(error, control, text) {
  error.textContent = text ?? "";
  error.hidden = !text;
  control.toggleAttribute("aria-invalid", Boolean(text));
}

function choice(name, label, change) {
  const select = h("select", { className: "fk-input", onchange: () => change({ [name]: select.value }) });
  let drawn = "";
  return {
    ...field(name, label, select),
    show(value, options) {
      const wanted = JSON.stringify(options);
      if (wanted !== drawn) {
        drawn = wanted;
        select.replaceChildren(...options.map((o) => h("option", { value: o.value, textContent: o.label, disabled: Boolean(o.off) })));
      }
      select.value = value;
    },
  };
}

// One of a few, all visible.
function segments(name, label, change) {
  const box = h("div", { className: "fk-segments" });
  const error = h("p", { className: "fk-error", hidden: true });
  const node = h("fieldset", { className: "fk-field" }, h("legend", { className: "fk-label" }, label), box, error);
  const group = `fk-${name}-${++fieldCount}`;
  let drawn = "";
  return {
    node,
    complain: (text) => complain(error, box, text),
    show(value, options) {
      const wanted = JSON.stringify(options);
      if (wanted !== drawn) {
        drawn = wanted;
        box.replaceChildren(...options.map((o) => {
          const radio = h("input", { type: "radio", name: group, value: o.value, disabled: Boolean(o.off), onchange: () => change({ [name]: o.value }) });
          return h("label", { title: o.off ?? "" }, radio, h("span", {}, o.label));
        }));
      }
      for (const radio of box.querySelectorAll("input")) radio.checked = radio.value === value;
    },
  };
}

// A slider over stops people use, and a box beside it that takes any number.
function slider(name, label, unit, change) {
  let stops = [1];
  const range = h("input", { type: "range", min: 0, step: 1, className: "fk-range", oninput: () => pick(stops[range.valueAsNumber]) });
  const typed = h("input", { className: "fk-typed", inputMode: "decimal", autocomplete: "off", spellcheck: false, "aria-label": `${label}, typed`,
    onchange: () => change({ [name]: typed.value }),
    onkeydown: (event) => event.key === "Enter" && (event.preventDefault(), change({ [name]: typed.value })) });
  const ends = h("div", { className: "fk-ends", ariaHidden: "true" }, h("span"), h("span"));
  const made = field(name, label, range, h("span", { className: "fk-number" }, typed, h("span", { className: "fk-unit" }, unit)));
  range.after(ends);
  const pick = (value) => { typed.value = grouped(value); range.setAttribute("aria-valuetext", `${grouped(value)} ${unit}`.trim()); change({ [name]: value }); };
  return {
    ...made,
    show(value, options, off = "") {
      stops = options;
      range.max = stops.length - 1;
      const number = Number(value);
      const at = stops.findIndex((stop) => stop >= number);
      range.value = at < 0 ? stops.length - 1 : at;
      range.setAttribute("aria-valuetext", `${Number.isFinite(number) ? grouped(number) : value} ${unit}`.trim());
      if (document.activeElement !== typed || Number.isFinite(number)) typed.value = Number.isFinite(number) ? grouped(number) : value;
      ends.firstChild.textContent = grouped(stops[0]);
      ends.lastChild.textContent = grouped(stops.at(-1));
      range.disabled = typed.disabled = Boolean(off);
      made.node.title = off;
      made.node.classList.toggle("fk-off", Boolean(off));
    },
  };
}

// A searchable list: type a few letters of a name, arrows, Enter. Free text is handed on as it is.
function combobox(name, label, hint, pick, keep) {
  let options = [], shown = [], active = -1, value = "";
  const list = h("ul", { className: "fk-list", role: "listbox", hidden: true, "aria-label": label });
  const input = h("input", { className: "fk-input", role: "combobox", autocomplete: "off", spellcheck: false, placeholder: hint,
    "aria-expanded": "false", "aria-autocomplete": "list",
    onfocus: () => input.select(), onclick: () => open(""), oninput: () => open(input.value),
    onblur: () => { close(); if (keep && input.value !== value) leave(); }, onkeydown: keys });
  const made = field(name, label, input);
  list.id = input.id + "-list";
  input.setAttribute("aria-controls", list.id);
  input.after(list);
  const plain = (text) => text.toLowerCase().replace(/[^a-z0-9. ]+/g, " ");
  function leave() { const text = input.value.trim(); if (text) take(text); else input.value = value; }
  function open(typed) {
    const [, count, text] = (!keep && typed.match(/^\s*(\d+)\s*[x×*]\s*(.*)$/i)) || [null, null, typed];
    const words = plain(text).split(" ").filter(Boolean);
    const compact = plain(text).replace(/ /g, "");
    shown = options.filter((o) => words.every((word) => o.find.includes(word)) || o.find.replace(/ /g, "").includes(compact));
    if (count) shown = shown.filter((o) => o.value.startsWith("1x ")).map((o) => ({ ...o, value: count + o.value.slice(1), label: `${count}× ${o.label}` }));
    shown = shown.slice(0, 60);
    active = text && shown.length ? 0 : -1;
    list.replaceChildren(...shown.map((o, i) => h("li", { role: "option", id: `${list.id}-${i}`, "aria-selected": String(i === active),
      onmousedown: (event) => { event.preventDefault(); take(o.value); } }, h("span", {}, o.label), h("span", { className: "fk-detail" }, o.detail ?? ""))));
    list.hidden = !shown.length;
    mark();
  }
  function mark() {
    [...list.children].forEach((item, i) => item.setAttribute("aria-selected", String(i === active)));
    input.setAttribute("aria-expanded", String(!list.hidden));
    if (active >= 0 && !list.hidden) {
      input.setAttribute("aria-activedescendant", list.children[active].id);
      list.children[active].scrollIntoView({ block: "nearest" });
    } else input.removeAttribute("aria-activedescendant");
  }
  function close() { list.hidden = true; active = -1; mark(); }
  function take(text) { close(); value = keep ? text : ""; input.value = value; pick(text); }
  function keys(event) {
    if (event.key === "ArrowDown" || event.key === "ArrowUp") {
      event.preventDefault();
      if (list.hidden) open("");
      else if (shown.length) { active = (active + (event.key === "ArrowDown" ? 1 : -1) + shown.length) % shown.length; mark(); }
    } else if (event.key === "Enter") {
      event.preventDefault();
      if (active >= 0 && !list.hidden) take(shown[active].value);
      else if (input.value.trim()) take(input.value.trim());
    } else if (event.key === "Escape") { event.stopPropagation(); close(); input.value = value; }
  }
  return {
    ...made,
    show(fresh, all) {
      if (all !== options) options = all.map((o) => ({ ...o, find: o.find ?? plain(`${o.label} ${o.value} ${o.detail ?? ""}`) }));
      if (keep && document.activeElement !== input) input.value = fresh;
      if (keep && fresh !== value) { value = fresh; input.value = fresh; }
    },
  };
}

// The chosen machines: the marked one is judged in the big line and in the two charts.
function machines(change, get) {
  const rows = h("div", { className: "fk-machines" });
  const error = h("p", { className: "fk-error", hidden: true });
  const group = `fk-lead-${++fieldCount}`;
  const add = combobox("add", "Add a machine", "RTX 5090, 8x H100, 2x 24 GiB…", (text) => change({ machines: [...get().machines, text], lead: text }), false);
  const node = h("fieldset", { className: "fk-field" }, h("legend", { className: "fk-label" }, "Machines"), rows, add.node, error);
  let drawn = "";
  return {
    node,
    complain: (text) => complain(error, rows, text),
    show(state, chosen, all) {
      add.show("", all);
      const wanted = JSON.stringify([chosen, state.lead]);
      if (wanted === drawn) return;
      drawn = wanted;
      const focus = rows.contains(document.activeElement) ? document.activeElement.getAttribute("data-at") : null;
      rows.replaceChildren(...chosen.map((m) => h("div", { className: "fk-machine" },
        h("label", {}, h("input", { type: "radio", name: group, checked: m.value === state.lead, "data-at": "lead" + m.value, onchange: () => change({ lead: m.value }) }),
          h("span", {}, m.label), h("span", { className: "fk-detail" }, m.detail)),
        h("button", { type: "button", className: "fk-remove", ariaLabel: `Remove ${m.label}`, textContent: "×", onclick: () => change({ machines: get().machines.filter((name) => name !== m.value) }) }))));
      if (focus) [...rows.querySelectorAll("[data-at]")].find((n) => n.getAttribute("data-at") === focus)?.focus();
    },
  };
}
