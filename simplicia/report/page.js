// Names come from data and may hold anything: they are set as text, never as HTML.

const DATA = JSON.parse(document.getElementById("data").textContent);
const CALM = matchMedia("(prefers-reduced-motion: reduce)");

function element(node, attributes, children) {
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}
const make = (tag, attributes = {}, ...children) => element(document.createElement(tag), attributes, children);
const draw = (tag, attributes = {}, ...children) =>
  element(document.createElementNS("http://www.w3.org/2000/svg", tag), attributes, children);
const short = (value) => String(Number(value.toPrecision(4)));
const exact = (value, format = short) => (value === null ? "–" : make("span", { "data-value": value }, format(value)));

// The theme follows the system until the button is pressed.
document.getElementById("theme").addEventListener("click", () => {
  const root = document.documentElement;
  const now = root.dataset.theme ?? (matchMedia("(prefers-color-scheme: dark)").matches ? "dark" : "light");
  root.dataset.theme = now === "dark" ? "light" : "dark";
});

// Charts are drawn in the HTML; this reads out the values under the pointer.
function chart(figure) {
  const svg = figure.querySelector(":scope > svg");
  const cursor = svg.querySelector(".cursor");
  const output = figure.querySelector(".readout");
  const { x: unit, y: measure, top, bottom, series } = DATA.charts[figure.dataset.chart];
  const positions = [...new Set(series.flatMap((line) => line.px))].sort((a, b) => a - b);
  const nearest = (list, px) => list.reduce((best, p, i) => (Math.abs(p - px) < Math.abs(list[best] - px) ? i : best), 0);
  let at = -1;

  function show(index) {
    if (!positions.length) return;
    at = Math.max(0, Math.min(positions.length - 1, index));
    const px = positions[at];
    cursor.replaceChildren(draw("path", { d: `M${px},${top}V${bottom}` }));
    output.replaceChildren();
    for (const line of series) {
      const i = nearest(line.px, px);
      if (!line.px.length || Math.abs(line.px[i] - px) > 2) continue;
      if (!output.children.length) output.append(make("span", {}, `${unit}: `, exact(line.x[i])));
      const name = series.length > 1 ? `${line.name}: ` : `${measure}: `;
      output.append(make("span", { class: line.style }, make("i"), name, exact(line.y[i])));
      cursor.append(draw("circle", { class: line.style, cx: line.px[i], cy: line.py[i], r: 4 }));
    }
  }
  function hide() {
    at = -1;
    cursor.replaceChildren();
    output.replaceChildren();
  }
  svg.addEventListener("pointermove", (event) => {
    const box = svg.getBoundingClientRect();
    show(nearest(positions, ((event.clientX - box.left) / box.width) * svg.viewBox.baseVal.width));
  });
  svg.addEventListener("pointerleave", hide);
  svg.addEventListener("keydown", (event) => {
    const move = { ArrowLeft: at - 1, ArrowRight: at + 1, Home: 0, End: positions.length - 1 }[event.key];
    if (event.key === "Escape") hide();
    if (move === undefined) return;
    event.preventDefault();
    show(move);
  });
  figure.querySelector(".numbers").addEventListener("toggle", (event) => {
    if (event.target.childElementCount > 1) return; // filled when first opened
    const all = [...new Set(series.flatMap((line) => line.x))].sort((a, b) => a - b);
    const value = series.map((line) => new Map(line.x.map((x, i) => [x, line.y[i]])));
    const head = make("tr", {}, make("th", {}, unit), ...series.map((line) => make("th", {}, line.name)));
    const rows = all.map((x) => {
      const cells = value.map((y) => make("td", {}, y.has(x) ? exact(y.get(x)) : "–"));
      return make("tr", {}, make("th", { scope: "row" }, exact(x)), ...cells);
    });
    event.target.append(make("table", {}, make("thead", {}, head), make("tbody", {}, ...rows)));
  });
}

// A thumbnail, cut from its sheet.
function thumb(run, index, size) {
  const picture = make("span", { class: "thumb", role: "img" });
  picture.style.width = picture.style.height = `${size}px`;
  const names = [];
  if (run.images[index]) {
    const [sheet, x, y, label, file] = run.images[index];
    const scale = size / run.tile;
    const [width, height] = run.sheets[sheet];
    picture.classList.add(`r${run.id}s${sheet}`);
    picture.style.backgroundSize = `${width * scale}px ${height * scale}px`;
    picture.style.backgroundPosition = `${-x * scale}px ${-y * scale}px`;
    if (label !== null) names.push(run.classes[label]);
    if (file !== null) names.push(file);
  }
  names.push(`image ${index}`);
  picture.setAttribute("aria-label", names.join(", "));
  picture.title = names.join("\n");
  return picture;
}
const labelOf = (run, index) => run.images[index]?.[3] ?? null;

// Bars of how often a feature fires on each class.
function profile(run, feature, count, chosen, onClass) {
  const list = make("dl", { class: "profile" });
  const most = Math.max(1, ...feature.classes.map(([, n]) => n));
  for (const [index, n] of feature.classes.slice(0, count)) {
    const name = run.classes[index];
    const term = make("dt", { title: name });
    term.append(onClass ? link(name, () => onClass(index)) : name);
    if (chosen?.kind === "class" && chosen.index === index) term.classList.add("wanted");
    const share = make("div", { class: "share" });
    share.style.width = `${(100 * n) / most}%`;
    list.append(term, make("dd", {}, share), make("dd", { class: "amount", "data-value": n }, String(n)));
  }
  return list;
}
function link(text, action) {
  const button = make("button", { type: "button", class: "plain-button" }, text);
  button.addEventListener("click", action);
  return button;
}
const vertexName = (run, feature) => `simplex ${Math.floor(feature / run.vertices)}, vertex ${feature % run.vertices}`;
const featureName = (run, feature) => `feature ${feature}` + (run.vertices ? `: ${vertexName(run, feature)}` : "");

// One run: graph, atlas and search share the selection, {kind: "class" | "feature", index, space} or null.
// Feature numbers are local to a space; the embedder's features are those of the simplices before the softmax.
const spaceOf = (layer) => (layer === "sem" || layer === "embedder" ? "simplices" : layer);
function explore(panel, run) {
  let chosen = null;
  const parts = [];
  const output = panel.querySelector(".choice");
  const clear = panel.querySelector(".clear");
  const choose = (wanted) => {
    chosen = wanted;
    if (output) output.textContent = !chosen ? "" : chosen.kind === "class" ? run.classes[chosen.index] : `feature ${chosen.index}`;
    if (clear) clear.hidden = !chosen;
    for (const part of parts) part.show(chosen);
  };
  const say = (text) => (output.textContent = text);
  if (panel.querySelector(".graph")) parts.push(graph(panel, run, choose, say));
  if (panel.querySelector(".atlas")) parts.push(atlas(panel, run, choose));
  if (panel.querySelector(".search")) search(panel, run, choose);
  clear?.addEventListener("click", () => choose(null));
  if (panel.querySelector(".examples")) examples(panel, run);
  choose(null);
}

function atlas(panel, run, choose) {
  const PAGE = 24;
  const list = panel.querySelector(".atlas");
  const more = panel.querySelector(".more");
  const filter = panel.querySelector(".filter");
  const { features, images, ranked_by: by } = run.atlas;
  let rows = features, shown = 0, chosen = null;

  const share = (feature, index) => (feature.classes.find(([c]) => c === index)?.[1] ?? 0) / Math.max(1, feature.fired);
  const facts = (feature) =>
    make("span", { class: "score" }, `feature ${feature.feature} · ${by} `, exact(feature.score),
      " · fires on ", exact(feature.fired, (n) => n.toLocaleString("en")), ` of ${images.toLocaleString("en")} images`);
  function card(feature, at) {
    const button = make("button", { type: "button" }, make("h4", {}, vertexName(run, feature.feature)), facts(feature));
    button.append(make("div", { class: "strip" }, ...feature.images.map((i) => thumb(run, i, 50))));
    button.append(profile(run, feature, 4, chosen));
    button.addEventListener("click", () => large(run, rows, at, facts, choose));
    return make("li", { class: "card", "data-feature": feature.feature }, button);
  }
  function add() {
    const next = rows.slice(shown, shown + PAGE);
    list.append(...next.map((feature, i) => card(feature, shown + i)));
    shown += next.length;
    more.hidden = shown >= rows.length;
  }
  more.addEventListener("click", add);
  return {
    show(wanted) {
      chosen = wanted;
      rows = features;
      filter.textContent = `${features.length} features.`;
      if (wanted?.kind === "class") {
        rows = features.filter((f) => share(f, wanted.index) > 0);
        rows.sort((a, b) => share(b, wanted.index) - share(a, wanted.index));
        filter.textContent = `${rows.length} of ${features.length} features have ${run.classes[wanted.index]} among the classes they fire on most, those with the largest share of it first.`;
      } else if (wanted) {
        const ours = wanted.space === "simplices";
        rows = ours ? features.filter((f) => f.feature === wanted.index) : [];
        filter.textContent = rows.length
          ? `Feature ${wanted.index} alone.`
          : ours
            ? `Feature ${wanted.index} is not among the ${features.length} features of the atlas.`
            : `Feature ${wanted.index} is not one of the simplices, which alone have an atlas.`;
      }
      shown = 0;
      list.replaceChildren();
      add();
    },
  };
}

// A feature's images, large, in a dialog.
function large(run, rows, at, facts, choose) {
  const dialog = document.querySelector(".large");
  const body = dialog.querySelector(".large-body");
  const turn = (to) => {
    at = (to + rows.length) % rows.length;
    const feature = rows[at];
    dialog.querySelector("h2").textContent = vertexName(run, feature.feature);
    const pictures = feature.images.map((index, i) => {
      const label = labelOf(run, index);
      const name = label === null ? run.images[index]?.[4] ?? `image ${index}` : run.classes[label];
      const box = make("span", { class: "shown" }, thumb(run, index, 128), make("span", { title: name }, name),
        make("span", {}, "probability ", exact(feature.probabilities[i])));
      box.style.width = "128px";
      return box;
    });
    const toClass = (index) => (dialog.close(), choose({ kind: "class", index }));
    body.replaceChildren(facts(feature), make("div", { class: "images" }, ...pictures), profile(run, feature, 8, null, toClass));
    if (feature.superclasses.length) {
      const groups = feature.superclasses.map(([g, n]) => `${run.superclasses[g]} ${n}`).join(", ");
      body.append(make("p", { class: "caption" }, `By superclass: ${groups}.`));
    }
  };
  dialog.querySelector(".previous").onclick = () => turn(at - 1);
  dialog.querySelector(".next").onclick = () => turn(at + 1);
  dialog.querySelector(".close").onclick = () => dialog.close();
  dialog.onclick = (event) => event.target === dialog && dialog.close();
  dialog.onkeydown = (event) => {
    if (event.key === "ArrowLeft") turn(at - 1);
    if (event.key === "ArrowRight") turn(at + 1);
  };
  turn(at);
  dialog.showModal();
}

// Find a class by a part of its name, or a feature by its number; the browser lists suggestions.
function search(panel, run, choose) {
  const form = panel.querySelector(".search");
  const input = form.querySelector("input");
  const space = run.vertices ? "simplices" : "encoder";
  const features = new Set(run.graphs.flatMap((g) => (spaceOf(g.layer) === space ? g.edges.map((e) => e[1]) : [])));
  for (const f of run.atlas?.features ?? []) features.add(f.feature);
  const classes = run.superclass || run.counts ? run.classes : []; // without labels there are no classes
  const entries = classes.map((name, index) => ({ kind: "class", index, name }));
  for (const f of [...features].sort((a, b) => a - b)) entries.push({ kind: "feature", index: f, name: featureName(run, f) });
  form.querySelector("datalist").append(...entries.map(({ name }) => make("option", { value: name })));

  function best(text) {
    const rank = ({ kind, index, name }) => {
      const at = name.toLowerCase().indexOf(text);
      if (name.toLowerCase() === text || (kind === "feature" && String(index) === text)) return 0;
      return at < 0 ? 3 : at > 0 ? 2 : 1;
    };
    return entries.map((entry) => [rank(entry), entry]).filter(([r]) => r < 3).sort((a, b) => a[0] - b[0])[0]?.[1];
  }
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    const text = input.value.trim().toLowerCase();
    const entry = text && best(text);
    input.setCustomValidity(text && !entry ? "No class or feature matches." : "");
    form.reportValidity();
    if (!entry) return;
    input.value = "";
    choose({ kind: entry.kind, index: entry.index, space });
    (panel.querySelector(".graph") ?? panel.querySelector(".atlas button"))?.focus();
  });
  input.addEventListener("input", () => input.setCustomValidity(""));
  input.addEventListener("keydown", (event) => event.key === "Escape" && choose(null));
}

function examples(panel, run) {
  const box = panel.querySelector(".examples");
  const queries = Map.groupBy(run.examples, (row) => row.query);
  const size = innerWidth < 760 ? 50 : 62;
  for (const [query, rows] of queries) {
    const wanted = labelOf(run, query);
    const labelled = (index, caption, same, extra = "") => {
      const text = make("span", { class: same ? "same" : "" }, ...caption);
      const picture = make("span", { class: `shown ${extra}` }, thumb(run, index, size), text);
      picture.style.width = `${size}px`;
      return picture;
    };
    const lines = rows.map((row) => {
      const near = row.neighbours.map((index, i) => {
        const same = wanted !== null && labelOf(run, index) === wanted;
        return labelled(index, [same ? "✓ " : "", exact(row.similarity[i], (s) => s.toFixed(2))], same);
      });
      const first = labelled(query, [wanted === null ? "query" : run.classes[wanted]], false, "query");
      return make("div", { class: "row" }, make("span", {}, `by ${row.layer}`), make("div", { class: "images" }, first, ...near));
    });
    box.append(make("div", { class: "example" }, ...lines));
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
  if (!filled.has(index)) {
    filled.add(index);
    explore(panels[index], { ...DATA.runs[index], id: index });
  }
}
tabs.forEach((tab, i) => {
  tab.addEventListener("click", () => open(i));
  tab.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    const to = (i + by + tabs.length) % tabs.length;
    open(to);
    tabs[to].focus();
  });
});
document.querySelectorAll("figure[data-chart]").forEach(chart);
open(0);
