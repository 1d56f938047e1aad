// Asks the server for what is new once a second and keeps the page up to date. Texts of the folder are never taken for HTML.

const $ = (id) => document.getElementById(id);
const POLL = 1000, HIDDEN = 10000;
const items = new Map(); // by name, as the server sent them
const views = new Map(); // by name: elements of folders and studies
const chosen = new Map(); // by study: the fleet that is shown
const colours = new Map(); // by class of a curve: light, dark
const sheet = new CSSStyleSheet();
document.adoptedStyleSheets = [sheet];
let [instance, version, now, timer, failures] = ["", 0, 0, 0, 0];
window.answered = 0; // number of answers, for tests and for the curious

function make(tag, facts = {}, ...inside) {
  const found = document.createElement(tag);
  for (const [key, value] of Object.entries(facts)) key in found ? (found[key] = value) : found.setAttribute(key, value);
  found.append(...inside.filter((each) => each !== null && each !== ""));
  return found;
}

// Text with `commands` in it.
const marked = (text) => text.split("`").map((part, i) => (i % 2 ? make("code", { textContent: part }) : part));
const counted = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;
function setText(element, text) {
  if (element.textContent !== text) element.textContent = text; // a reader's selection and screen reader stay undisturbed
}
const percent = (share) => `${Math.floor(100 * share)} %`;
function inWords(seconds) {
  const s = Math.round(seconds);
  if (s < 60) return `${Math.max(s, 1)} s`;
  if (s < 3600) return `${Math.round(s / 60)} min`;
  if (s < 100 * 3600) return `${Math.floor(s / 3600)} h ${Math.round((s % 3600) / 60)} min`;
  return s < 2 * 365 * 86400 ? `${Math.round(s / 86400)} days` : `${Math.round(s / 86400 / 365)} years`;
}

// -- folders and studies ---------------------------------------------------------------------------------------------
function folderView(name) {
  if (!views.has(name)) {
    const view = { head: make("h2"), driver: make("p", { className: "driver" }), written: make("p", { className: "soft" }),
      problems: make("ul"), studies: make("div"), tally: make("p", { className: "tally" }), absent: make("div"),
      figures: make("div", { className: "figures" }), verdicts: make("div") };
    view.verdicts.append(make("h3", { textContent: "Figures and verdicts so far", tabIndex: -1, id: `figures-${views.size}` }), view.absent, view.figures);
    view.verdicts.hidden = true;
    view.root = make("section", {}, view.head, view.driver, view.written, view.tally, view.problems, view.studies, view.verdicts);
    views.set(name, view);
    insert($("folders"), view.root, name);
  }
  return views.get(name);
}

// Keeps the children of a place in the order of their names.
function insert(place, element, name) {
  element.dataset.name = name;
  place.insertBefore(element, [...place.children].find((other) => other.dataset.name > name) ?? null);
}

function showFolder(name, folder) {
  const view = folderView(name);
  setText(view.head, folder.path);
  view.driver.className = `driver ${folder.driver}`;
  view.driver.replaceChildren(...marked(folder.text));
  view.problems.replaceChildren(...folder.problems.map((text) => make("li", { className: "problem" }, ...marked(text))));
}

function showWritten() {
  for (const [name, folder] of items)
    if (name.startsWith("folder ") && folder.written)
      setText(views.get(name).written, `last written ${inWords(Math.max(0, now - folder.written))} ago`);
}

function studyView(name, study) {
  if (!views.has(name)) {
    const view = { name, facts: make("p"), failures: make("div"), detail: make("div", { hidden: true }), cells: new Map(),
      bar: make("progress", { max: 1 }), grid: make("div", { className: "cells", role: "group" }), canvas: make("canvas", { role: "img" }),
      colours: make("p", { className: "soft" }), question: make("p", { className: "soft" }), key: make("ul", { className: "key" }) };
    view.bar.setAttribute("aria-label", `progress of ${study.name}`);
    view.grid.setAttribute("aria-label", `fleets of ${study.name}`);
    const left = make("div", {}, view.bar, view.facts, view.grid, view.key, view.detail, view.failures);
    view.root = make("article", {}, make("h3", { textContent: study.name }), view.question,
      make("div", { className: "body" }, left, make("div", {}, view.canvas, view.colours)));
    view.grid.addEventListener("keydown", (event) => moveAmongCells(view, event));
    view.grid.addEventListener("click", (event) => {
      const cell = event.target.closest("button");
      if (cell) choose(view, chosen.get(name) === cell.dataset.id ? null : cell.dataset.id);
    });
    new ResizeObserver(() => redraw(name)).observe(view.canvas);
    views.set(name, view);
    insert(folderView(`folder ${study.folder}`).studies, view.root, name);
  }
  return views.get(name);
}

const fleetsOf = (study) => study.fleets.map((id) => items.get(`fleet ${study.folder} ${id}`)).filter(Boolean);

function showStudy(name, study, changedFleets) {
  const view = studyView(name, study);
  setText(view.question, study.question);
  view.bar.value = study.done;
  const states = Object.entries(study.states).filter(([, count]) => count).map(([state, count]) => `${count} ${state}`);
  const running = study.workers > 0;
  const left = study.left === 0 ? "" : running ? `, ${study.rough ? "roughly" : "about"} ${inWords(study.left)} left`
    : `, ${study.rough ? "roughly" : "about"} ${inWords(study.left)} of work left for one worker`;
  setText(view.facts, `${percent(study.done)} done: ${study.finished} of ${counted(study.runs, "run")}` +
    (study.diverged ? ` (${study.diverged} diverged)` : "") + left);
  view.key.replaceChildren(...[`${counted(study.fleets.length, "fleet")}`, ...states].map((text) => make("li", { textContent: text })));
  showCells(view, study, changedFleets);
  const failed = fleetsOf(study).filter((fleet) => fleet.failure || fleet.problem);
  view.failures.replaceChildren(...failed.slice(0, 10).map(failureOf));
  if (failed.length > 10) view.failures.append(make("p", { textContent: `… and ${failed.length - 10} more` }));
  showDetail(view, study);
  redraw(name);
}

function failureOf(fleet) {
  if (!fleet.failure) return make("p", { className: "problem", textContent: fleet.problem });
  const times = fleet.failure.attempts === null ? "" : ` ${counted(fleet.failure.attempts, "time")}`;
  return make("div", {}, make("p", { className: "problem", textContent: `fleet ${fleet.id} failed${times} and is left out (${fleet.settings}); its last lines:` }),
    make("pre", { textContent: fleet.failure.lines.join("\n"), tabIndex: 0 }));
}

function showCells(view, study, changedFleets) {
  const place = (cell, at) => { if (view.grid.children[at] !== cell) view.grid.insertBefore(cell, view.grid.children[at] ?? null); };
  const wanted = new Set(study.fleets);
  for (const [id, cell] of view.cells) if (!wanted.has(id) && view.cells.delete(id)) cell.remove();
  view.grid.classList.toggle("many", study.fleets.length > 150);
  study.fleets.forEach((id, at) => {
    const fresh = !view.cells.has(id);
    if (fresh) view.cells.set(id, make("button", { type: "button", tabIndex: -1 }));
    const cell = view.cells.get(id);
    place(cell, at);
    const fleet = items.get(`fleet ${study.folder} ${id}`);
    if (!fleet || !(fresh || changedFleets.has(fleet))) return;
    cell.dataset.id = id;
    cell.className = fleet.state.replace(" ", "-");
    cell.style.setProperty("--done", `${100 * fleet.done}%`);
    const words = `fleet ${id}: ${fleet.state}${fleet.state === "finished" ? "" : `, ${percent(fleet.done)}`}, ${counted(fleet.runs, "run")}, ${fleet.settings}`;
    cell.title = words;
    cell.setAttribute("aria-label", words);
    cell.setAttribute("aria-pressed", String(chosen.get(view.name) === id));
  });
  const cells = [...view.cells.values()];
  if (cells.length && !cells.some((cell) => cell.tabIndex === 0)) view.grid.children[0].tabIndex = 0;
}

function moveAmongCells(view, event) {
  const cells = [...view.grid.children];
  const at = cells.indexOf(document.activeElement);
  const row = Math.max(1, cells.findIndex((cell) => cell.offsetTop > cells[0].offsetTop));
  const step = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: row, ArrowUp: -row, Home: -cells.length, End: cells.length }[event.key];
  if (event.key === "Escape") choose(view, null);
  if (!step || at < 0) return;
  event.preventDefault();
  const next = cells[Math.min(cells.length - 1, Math.max(0, at + step))];
  cells[at].tabIndex = -1;
  next.tabIndex = 0;
  next.focus();
}

function choose(view, id) {
  const before = view.cells.get(chosen.get(view.name));
  if (before) before.setAttribute("aria-pressed", "false");
  id === null ? chosen.delete(view.name) : chosen.set(view.name, id);
  if (view.cells.has(id)) view.cells.get(id).setAttribute("aria-pressed", "true");
  showDetail(view, items.get(view.name));
  redraw(view.name);
}

function showDetail(view, study) {
  const fleet = items.get(`fleet ${study.folder} ${chosen.get(view.name)}`);
  view.detail.hidden = !fleet;
  if (!fleet) return;
  const time = fleet.seconds ? `, ${inWords(fleet.seconds)}` : "";
  setText(view.detail, `fleet ${fleet.id}: ${fleet.state}, ${percent(fleet.done)}, ${counted(fleet.runs, "run")}` +
    `${fleet.diverged ? ` (${fleet.diverged} diverged)` : ""}; ${fleet.settings}${time}${fleet.where ? ` on ${fleet.where}` : ""}` +
    `${fleet.ended ? `, ended ${fleet.ended}` : ""}`);
}

// -- pictures --------------------------------------------------------------------------------------------------------
const waiting = new Set();
function redraw(name) {
  if (!waiting.size) requestAnimationFrame(() => {
    const names = [...waiting];
    waiting.clear();
    for (const each of names) if (views.has(each) && items.has(each)) drawStudy(views.get(each), items.get(each));
  });
  waiting.add(name);
}

function drawStudy(view, study) {
  const fleets = fleetsOf(study);
  setText(view.colours, drawCurves(view.canvas, fleets, chosen.get(view.name)));
  let best = 0;
  for (const fleet of fleets) for (const curve of fleet.curves) for (const value of curve.test) best = Math.max(best, value);
  view.canvas.setAttribute("aria-label", `Test accuracy of the runs of ${study.name} against epochs; the highest is ${(100 * best).toFixed(1)} %`);
}

function showFigure(name, figure) {
  const folder = folderView(`folder ${figure.folder}`);
  folder.verdicts.hidden = false;
  for (const entry of figure.legend) colours.set(entry.class, entry.colours);
  const drawn = figure.panels.map((text) => document.adoptNode(new DOMParser().parseFromString(text, "text/html").body.firstElementChild));
  const legend = make("ul", { className: "legend" }, ...figure.legend.map((entry) =>
    make("li", { className: `${entry.class} ${entry.style}` }, make("i"), entry.label)));
  const open = views.get(name)?.root.querySelector("details")?.open ?? false;
  const more = make("details", { open }, make("summary", { textContent: "How it is judged, and what is drawn" }),
    ...[figure.seen, figure.rule, figure.caption].filter(Boolean).map((text) => make("p", { textContent: text })));
  const root = make("figure", {},
    make("h4", {}, `${figure.name}: ${figure.title} `, figure.outcome ? make("span", { className: `chip ${figure.outcome}`, textContent: figure.outcome }) : ""),
    figure.regime ? make("p", { className: "soft", textContent: figure.regime }) : "",
    figure.claim ? make("p", { textContent: figure.claim }) : "",
    figure.number ? make("p", { className: "number", textContent: figure.number }) : "",
    figure.advice ? make("p", { className: "soft", textContent: figure.advice }) : "",
    ...drawn, legend, more, make("figcaption", { textContent: counted(figure.runs, "run") }));
  views.get(name)?.root.remove();
  views.set(name, { root });
  insert(folder.figures, root, String(figure.place).padStart(5, "0"));
}

function showJudged(judged) {
  const view = folderView(`folder ${judged.folder}`);
  const figures = [...items].filter(([name, each]) => name.startsWith("figure ") && each.folder === judged.folder).map(([, each]) => each);
  const judges = figures.filter((each) => each.outcome);
  const tally = ["agrees", "disagrees", "undecided"].map((outcome) =>
    make("span", { className: `chip ${outcome}`, textContent: `${judges.filter((each) => each.outcome === outcome).length} ${outcome}` }));
  const link = make("a", { href: `#${view.verdicts.firstElementChild.id}`, textContent: `${counted(figures.length, "figure")} on ${counted(judged.rows, "run")}` });
  view.tally.replaceChildren(...(judges.length ? ["Verdicts so far:", ...tally] : []), ...(figures.length ? [link] : []));
  const absent = Object.entries(judged.absent);
  view.absent.replaceChildren(judged.problem ? make("p", { className: "problem", textContent: judged.problem }) : "");
  if (absent.length) view.absent.append(make("details", {}, make("summary", { textContent: `${counted(absent.length, "figure")} cannot be shown yet` }),
    make("ul", {}, ...absent.map(([id, reason]) => make("li", { textContent: `${id}: ${reason}` })))));
  view.verdicts.hidden = !figures.length && !absent.length && !judged.problem;
}

function showColours() {
  const dark = document.documentElement.dataset.theme === "dark" ? 1 : 0;
  const text = [...colours].map(([name, pair]) => `.${CSS.escape(name)}{--c:${pair[dark]}}`).join("");
  if (showColours.text !== text) sheet.replaceSync((showColours.text = text));
}

// -- the state -------------------------------------------------------------------------------------------------------
function apply(answer) {
  if (answer.whole) {
    items.clear(), views.clear(), $("folders").replaceChildren();
  }
  [instance, version, now] = [answer.instance, answer.version, answer.now];
  const gone = answer.removed.filter((name) => items.delete(name));
  for (const name of gone) views.get(name)?.root?.remove(), views.delete(name);
  const changed = Object.entries(answer.items);
  for (const [name, item] of changed) items.set(name, item);
  const fleets = new Set(changed.filter(([name]) => name.startsWith("fleet ")).map(([, item]) => item));
  const touched = new Set([...fleets].map((fleet) => `${fleet.folder} ${fleet.id}`));
  for (const [name, item] of changed) if (name.startsWith("folder ")) showFolder(name, item);
  for (const [name, item] of items)
    if (name.startsWith("study ") && (name in answer.items || (touched.size && item.fleets.some((id) => touched.has(`${item.folder} ${id}`)))))
      showStudy(name, item, fleets);
  for (const [name, item] of changed) if (name.startsWith("figure ")) showFigure(name, item);
  for (const [name, item] of changed) if (name.startsWith("figures ")) showJudged(item);
  if ("root" in answer.items) $("problem").replaceChildren(...marked(answer.items.root.problem));
  showColours();
  showWritten();
  const folders = [...items].filter(([name]) => name.startsWith("folder ")).map(([, folder]) => folder);
  setText($("path"), folders.length === 1 && folders[0].path === answer.path ? "" : answer.path);
  const [runs, left] = [folders.reduce((sum, each) => sum + each.runs, 0), folders.reduce((sum, each) => sum + each.left, 0)];
  document.title = runs ? `${percent(1 - left / runs)} of ${counted(runs, "run")} · tacit watch` : "tacit watch";
  setText($("status"), answer.age > 10 ? `the folder was last read ${inWords(answer.age)} ago: it answers slowly` : "up to date");
  window.answered++;
}

async function ask() {
  clearTimeout(timer);
  try {
    const answer = await fetch(instance ? `state?since=${instance}-${version}` : "state", { cache: "no-store" });
    if (!answer.ok) throw new Error(String(answer.status));
    apply(await answer.json());
    failures = 0;
  } catch (error) {
    failures++;
    window.lastError = String(error.stack ?? error);
    if (failures > 1) setText($("status"), "no answer: `tacit watch` was stopped, or cannot be reached; trying again".replaceAll("`", ""));
  }
  timer = setTimeout(ask, document.hidden ? HIDDEN : Math.min(POLL * (1 + failures), 10000));
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  showColours();
  for (const name of items.keys()) if (name.startsWith("study ")) redraw(name);
}

const prefers = matchMedia("(prefers-color-scheme: dark)");
prefers.addEventListener("change", () => setTheme(prefers.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(); });
setTheme(prefers.matches ? "dark" : "light");
ask();
