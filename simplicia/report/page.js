// Names come from data and may hold anything: they are set as text, never as HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

function element(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes))
    if (typeof value === "function") node[name] = value; // onclick
    else node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const make = (tag, attributes = {}, ...children) => element(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  element(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const link = (text, onclick) => make("button", { type: "button", class: "plain-button", onclick }, text);
const short = (value) => String(Number(value.toPrecision(4)));
const exact = (value, format = short) => (value === null ? "–" : make("span", { "data-value": value }, format(value)));

// The theme follows the system until the button is pressed.
document.getElementById("theme").onclick = () => {
  const root = document.documentElement;
  const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
};

// Charts are drawn in the HTML; this reads out the values under the pointer.
function chart(figure) {
  const svg = figure.querySelector(":scope > svg");
  const cursor = svg.querySelector(".cursor");
  const output = figure.querySelector(".readout");
  const { x: unit, y: measure, top, bottom, series } = DATA.charts[figure.dataset.chart];
  const sorted = (key) => [...new Set(series.flatMap((line) => line[key]))].sort((a, b) => a - b);
  const nearest = (list, px) => list.reduce((best, p, i) => (Math.abs(p - px) < Math.abs(list[best] - px) ? i : best), 0);
  const positions = sorted("px");
  const last = positions.length - 1;
  let at = -1; // of the position that is read out

  function show(index) {
    at = index;
    cursor.replaceChildren();
    output.replaceChildren();
    const px = positions[at];
    if (px === undefined) return;
    cursor.append(draw("path", { d: `M${px},${top}V${bottom}` }));
    for (const line of series) {
      const i = nearest(line.px, px);
      if (!line.px.length || Math.abs(line.px[i] - px) > 2) continue;
      if (!output.children.length) output.append(make("span", {}, `${unit}: `, exact(line.x[i])));
      const name = series.length > 1 ? line.name : measure;
      output.append(make("span", { class: line.style }, make("i"), `${name}: `, exact(line.y[i])));
      cursor.append(draw("circle", { class: line.style, cx: line.px[i], cy: line.py[i], r: 4 }));
    }
  }
  svg.onpointermove = (event) => {
    const box = svg.getBoundingClientRect();
    show(nearest(positions, ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width));
  };
  svg.onpointerleave = () => show(-1);
  svg.onkeydown = (event) => {
    const moves = { ArrowLeft: Math.max(0, at - 1), ArrowRight: Math.min(last, at + 1), Home: 0, End: last, Escape: -1 };
    if (!(event.key in moves)) return;
    event.preventDefault();
    show(moves[event.key]);
  };
  const numbers = figure.querySelector(".numbers");
  numbers.open = matchMedia("(min-width: 976px)").matches && figure.matches(".figures > :last-child:nth-child(odd)");
  numbers.ontoggle = (event) => {
    if (event.target.childElementCount > 1) return; // filled when first opened
    const head = make("tr", {}, ...[unit, ...series.map((line) => line.name)].map((name) => make("th", {}, name)));
    const rows = sorted("x").map((x) => {
      const values = series.map((line) => line.y[line.x.lastIndexOf(x)] ?? null);
      const cells = values.map((value) => make("td", {}, exact(value)));
      return make("tr", {}, make("th", { scope: "row" }, exact(x)), ...cells);
    });
    event.target.append(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  };
}

// What an image is called: its class, its file, its number.
function imageNames(run, index) {
  const { label, file } = run.thumbnails.images[index] ?? {};
  return [run.data.classes[label], file, `image ${index}`].filter((name) => name != null);
}
// A thumbnail, cut from its sheet.
function thumb(run, index, size) {
  const names = imageNames(run, index);
  const { tile, sheets, images } = run.thumbnails;
  const look = { class: "thumb", style: `width:${size}px;height:${size}px` };
  if (images[index]) {
    const { sheet, x, y } = images[index];
    const px = (value) => `${(value * size) / tile}px`;
    look.class += ` r${run.id}s${sheet}`;
    look.style += `;background-size:${px(sheets[sheet].width)} ${px(sheets[sheet].height)}`;
    look.style += `;background-position:${px(-x)} ${px(-y)}`;
  }
  return make("span", { role: "img", "aria-label": names.join(", "), title: names.join("\n"), ...look });
}
// A thumbnail with texts below it.
const shown = (run, index, size, texts, extra = "") =>
  make("span", { class: `shown ${extra}`, style: `width:${size}px` }, thumb(run, index, size), ...texts);

// Bars of how often a feature fires on each class.
function profile(run, feature, count, chosen, onClass) {
  const most = Math.max(1, ...feature.classes.map(([, n]) => n));
  const rows = feature.classes.slice(0, count).flatMap(([index, n]) => {
    const name = run.data.classes[index];
    const wanted = chosen?.kind === "class" && chosen.index === index;
    return [
      make("dt", { title: name, class: wanted ? "wanted" : "" }, onClass ? link(name, () => onClass(index)) : name),
      make("dd", {}, make("div", { class: "share", style: `width:${(100 * n) / most}%` })),
      make("dd", { class: "amount", "data-value": n }, n),
    ];
  });
  return make("dl", { class: "profile" }, ...rows);
}
const vertexName = (run, feature) => `simplex ${Math.floor(feature / run.vertices)}, vertex ${feature % run.vertices}`;
const nameOf = (run, { kind, index }) => (kind === "class" ? run.data.classes[index] : `feature ${index}`);

// One run: graph, atlas and search share the selection, {kind: "class" | "feature", index, space} or null.
// Feature numbers are local to a space; the embedder's features are those of the simplices before the softmax.
const spaceOf = (layer) => (layer === "sem" || layer === "embedder" ? "simplices" : layer);
function explore(panel, run) {
  const parts = []; // functions that show a selection
  const say = (text) => (panel.querySelector(".choice").textContent = text);
  const choose = (wanted) => {
    say(wanted ? nameOf(run, wanted) : "");
    panel.querySelector(".clear").hidden = !wanted;
    for (const show of parts) show(wanted);
  };
  if (panel.querySelector(".graph")) parts.push(graph(panel, run, choose, say));
  if (panel.querySelector(".atlas")) parts.push(atlas(panel, run, choose));
  if (panel.querySelector(".examples")) examples(panel, run);
  if (!parts.length) return;
  search(panel, run, choose);
  panel.querySelector(".clear").onclick = () => choose(null);
  choose(null);
}

function atlas(panel, run, choose) {
  const PAGE = 24;
  const list = panel.querySelector(".atlas");
  const more = panel.querySelector(".more");
  const filter = panel.querySelector(".filter");
  const { features, images, ranked_by: by } = run.atlas;
  let rows = features, chosen = null;

  const share = (feature, index) => (feature.classes.find(([c]) => c === index)?.[1] ?? 0) / Math.max(1, feature.fired);
  const facts = (feature) =>
    make("span", { class: "score" }, `feature ${feature.feature} · ${by} `, exact(feature.score),
      " · fires on ", exact(feature.fired, (n) => n.toLocaleString("en")), ` of ${images.toLocaleString("en")} images`);
  function card(feature, at) {
    const button = make("button", { type: "button", onclick: () => large(run, rows, at, facts, choose) },
      make("h4", {}, vertexName(run, feature.feature)), facts(feature),
      make("div", { class: "strip" }, ...feature.images.map((i) => thumb(run, i, 50))), profile(run, feature, 4, chosen));
    return make("li", { class: "card", "data-feature": feature.feature }, button);
  }
  more.onclick = () => {
    const count = list.childElementCount;
    list.append(...rows.slice(count, count + PAGE).map((feature, i) => card(feature, count + i)));
    more.hidden = list.childElementCount >= rows.length;
  };
  return (wanted) => {
    chosen = wanted;
    rows = features;
    filter.textContent = `${features.length} features.`;
    if (wanted?.kind === "class") {
      rows = features.filter((f) => share(f, wanted.index) > 0);
      rows.sort((a, b) => share(b, wanted.index) - share(a, wanted.index));
      filter.textContent = `${rows.length} of ${features.length} features have ${nameOf(run, wanted)} among the classes they fire on most, those with the largest share of it first.`;
    } else if (wanted) {
      const ours = wanted.space === "simplices";
      rows = features.filter((f) => ours && f.feature === wanted.index);
      filter.textContent = `Feature ${wanted.index} ` + (rows.length ? "alone."
        : ours ? `is not among the ${features.length} features of the atlas.`
        : "is not one of the simplices, which alone have an atlas.");
    }
    list.replaceChildren();
    more.onclick();
  };
}

// A feature's images, large, in a dialog.
function large(run, rows, at, facts, choose) {
  const dialog = document.querySelector(".large");
  const body = dialog.querySelector(".large-body");
  const turn = (by) => {
    at = (at + by + rows.length) % rows.length;
    const feature = rows[at];
    dialog.querySelector("h2").textContent = vertexName(run, feature.feature);
    const pictures = feature.images.map((index, i) => {
      const [name] = imageNames(run, index);
      const probability = make("span", {}, "probability ", exact(feature.probabilities[i]));
      return shown(run, index, 128, [make("span", { title: name }, name), probability]);
    });
    const toClass = (index) => (dialog.close(), choose({ kind: "class", index }));
    body.replaceChildren(facts(feature), make("div", { class: "images" }, ...pictures), profile(run, feature, 8, null, toClass));
    const groups = feature.superclasses.map(([g, n]) => `${run.data.superclasses[g]} ${n}`).join(", ");
    if (groups) body.append(make("p", { class: "caption" }, `By superclass: ${groups}.`));
  };
  dialog.querySelector(".previous").onclick = () => turn(-1);
  dialog.querySelector(".next").onclick = () => turn(1);
  dialog.querySelector(".close").onclick = () => dialog.close();
  dialog.onclick = (event) => event.target === dialog && dialog.close();
  dialog.onkeydown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (by) turn(by);
  };
  turn(0);
  dialog.showModal();
}

// Find a class by a part of its name, or a feature by its number; the browser lists suggestions.
function search(panel, run, choose) {
  const form = panel.querySelector(".search");
  const input = form.querySelector("input");
  const space = run.vertices ? "simplices" : "encoder";
  const graphs = run.coherence?.graphs.filter((g) => spaceOf(g.layer) === space) ?? [];
  const features = new Set(graphs.flatMap((g) => g.edges.map(([, f]) => f)));
  for (const f of run.atlas?.features ?? []) features.add(f.feature);
  const labelled = run.data.superclass || run.data.class_counts; // without labels there are no classes
  const entries = (labelled ? run.data.classes : []).map((name, index) => ({ kind: "class", index, name }));
  for (const f of [...features].sort((a, b) => a - b)) {
    const name = `feature ${f}` + (run.vertices ? `: ${vertexName(run, f)}` : "");
    entries.push({ kind: "feature", index: f, name });
  }
  form.querySelector("datalist").append(...entries.map(({ name }) => make("option", { value: name })));

  form.onsubmit = (event) => {
    event.preventDefault();
    const text = input.value.trim().toLowerCase();
    const rank = ({ kind, index, name }) => {
      if (kind === "feature" && String(index) === text) return 0;
      const at = name.toLowerCase().indexOf(text);
      return at < 0 ? 3 : at > 0 ? 2 : name.length > text.length ? 1 : 0;
    };
    const ranked = entries.filter((entry) => text && rank(entry) < 3).sort((a, b) => rank(a) - rank(b));
    input.setCustomValidity(text && !ranked.length ? "No class or feature matches." : "");
    form.reportValidity();
    if (!ranked.length) return;
    input.value = "";
    choose({ ...ranked[0], space });
    (panel.querySelector(".graph") ?? panel.querySelector(".atlas button"))?.focus({ preventScroll: true });
    form.scrollIntoView(); // what was found stays in sight
  };
  input.oninput = () => input.setCustomValidity("");
  input.onkeydown = (event) => {
    if (event.key === "Escape") choose(null);
  };
}

function examples(panel, run) {
  const size = innerWidth < 760 ? 50 : 62;
  const labelOf = (index) => run.thumbnails.images[index]?.label ?? null;
  for (const [query, rows] of Map.groupBy(run.retrieval.examples, (row) => row.query)) {
    const wanted = labelOf(query);
    const name = wanted === null ? "query" : run.data.classes[wanted];
    const lines = rows.map((row) => {
      const near = row.neighbours.map((index, i) => {
        const same = wanted !== null && labelOf(index) === wanted;
        const similarity = exact(row.similarity[i], (s) => s.toFixed(2));
        return shown(run, index, size, [make("span", { class: same ? "same" : "" }, same ? "✓ " : "", similarity)]);
      });
      const first = shown(run, query, size, [make("span", {}, name)], "query");
      return make("div", { class: "row" }, make("span", {}, `by ${row.layer}`), make("div", { class: "images" }, first, ...near));
    });
    panel.querySelector(".examples").append(make("div", { class: "example" }, ...lines));
  }
}

// Several runs have a tab each; a panel is filled when it is first opened.
const panels = [...document.querySelectorAll(".panel")];
const tabs = [...document.querySelectorAll("[role=tab]")];
const filled = new Set();
function open(index) {
  tabs.forEach((tab, i) => {
    tab.setAttribute("aria-selected", i === index);
    tab.tabIndex = i === index ? 0 : -1;
  });
  panels.forEach((panel, i) => (panel.hidden = i !== index));
  if (!filled.has(index)) explore(panels[index], { ...DATA.runs[index], id: index });
  filled.add(index);
}
tabs.forEach((tab, i) => {
  tab.onclick = () => open(i);
  tab.onkeydown = (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    const to = (i + by + tabs.length) % tabs.length;
    open(to);
    tabs[to].focus();
  };
});
document.querySelectorAll("figure[data-chart]").forEach(chart);
open(0);
