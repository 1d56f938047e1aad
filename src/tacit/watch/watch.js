// Asks the server for progress and for figures, and keeps the page up to date. Texts of the folder are never taken for HTML.

const $ = (id) => document.getElementById(id);
const HIDDEN = 10000;
const views = new Map(); // by name: elements of folders, studies and figures
const chosen = new Map(); // by study: the fleet that is shown
const colours = new Map(); // by class of a curve: light, dark
const sheet = new CSSStyleSheet();
document.adoptedStyleSheets = [sheet];
let folders = []; // as the server sent them last
let now = 0; // the server's clock
[window.answered, window.judged] = [0, 0]; // number of answers, for tests and for the curious

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
function folderView(path) {
  const name = `folder ${path}`;
  if (!views.has(name)) {
    const view = { head: make("h2", { textContent: path }), running: make("p", { className: "running" }), written: make("p", { className: "soft" }),
      problems: make("ul"), studies: make("div"), tally: make("p", { className: "tally" }), absent: make("div"),
      figures: make("div", { className: "figures" }), verdicts: make("div", { hidden: true }) };
    view.verdicts.append(make("h3", { textContent: "Figures and verdicts so far", tabIndex: -1, id: `figures-${views.size}` }), view.absent, view.figures);
    view.root = make("section", {}, view.head, view.running, view.written, view.tally, view.problems, view.studies, view.verdicts);
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

function showFolder(folder) {
  const view = folderView(folder.path);
  view.running.className = `running ${folder.running ? "yes" : "no"}`;
  view.running.replaceChildren(...marked(folder.text));
  view.problems.replaceChildren(...folder.problems.map((text) => make("li", { className: "problem" }, ...marked(text))));
  for (const study of folder.studies) showStudy(folder, study);
}

function showWritten() {
  for (const folder of folders)
    if (folder.written) setText(folderView(folder.path).written, `last written ${inWords(Math.max(0, now - folder.written))} ago`);
}

function studyView(folder, study) {
  const name = `study ${folder.path} ${study.name}`;
  if (!views.has(name)) {
    const view = { name, facts: make("p"), failures: make("div"), detail: make("div", { hidden: true }), cells: new Map(),
      bar: make("progress", { max: 1 }), grid: make("div", { className: "cells", role: "group" }), canvas: make("canvas", { role: "img" }),
      colours: make("ul", { className: "legend" }), question: make("p", { className: "soft" }), key: make("ul", { className: "key" }),
      runs: make("details", {}, make("summary", { textContent: "Table of runs" })), table: make("div", { className: "table" }) };
    view.bar.setAttribute("aria-label", `progress of ${study.name}`);
    view.grid.setAttribute("aria-label", `fleets of ${study.name}`);
    view.runs.append(view.table);
    view.runs.addEventListener("toggle", () => showRuns(view));
    const left = make("div", {}, view.bar, view.facts, view.grid, view.key, view.detail, view.failures);
    view.root = make("article", {}, make("h3", { textContent: study.name }), view.question,
      make("div", { className: "body" }, left, make("div", {}, view.canvas, view.colours)), view.runs);
    view.grid.addEventListener("keydown", (event) => moveAmongCells(view, event));
    view.grid.addEventListener("click", (event) => {
      const cell = event.target.closest("button");
      if (cell) choose(view, chosen.get(name) === cell.dataset.id ? null : cell.dataset.id);
    });
    new ResizeObserver(() => redraw(view)).observe(view.canvas);
    views.set(name, view);
    insert(folderView(folder.path).studies, view.root, name);
  }
  return views.get(name);
}

function showStudy(folder, study) {
  const view = studyView(folder, study);
  view.study = study;
  setText(view.question, study.question);
  view.bar.value = study.done;
  const states = Object.entries(study.states).map(([state, count]) => `${count} ${state}`);
  const left = !study.left ? "" : study.workers ? `, about ${inWords(study.left)} left` : `, about ${inWords(study.left)} of work left for one worker`;
  setText(view.facts, `${percent(study.done)} done: ${study.finished} of ${counted(study.runs, "run")}` +
    (study.diverged ? ` (${study.diverged} diverged)` : "") + left);
  view.key.replaceChildren(...[counted(study.fleets.length, "fleet"), ...states].map((text) => make("li", { textContent: text })));
  showCells(view);
  const failed = study.fleets.filter((fleet) => fleet.failure || fleet.problem);
  view.failures.replaceChildren(...failed.slice(0, 10).map(failureOf));
  if (failed.length > 10) view.failures.append(make("p", { textContent: `… and ${failed.length - 10} more` }));
  showDetail(view);
  showRuns(view);
  redraw(view);
}

function failureOf(fleet) {
  if (!fleet.failure) return make("p", { className: "problem", textContent: fleet.problem });
  const times = fleet.failure.attempts === null ? "" : ` ${counted(fleet.failure.attempts, "time")}`;
  return make("div", {}, make("p", { className: "problem", textContent: `fleet ${fleet.id} failed${times} and is left out (${fleet.settings}); its last lines:` }),
    make("pre", { textContent: fleet.failure.lines.join("\n"), tabIndex: 0 }));
}

function showCells(view) {
  const fleets = view.study.fleets;
  const wanted = new Set(fleets.map((fleet) => fleet.id));
  for (const [id, cell] of view.cells) if (!wanted.has(id) && view.cells.delete(id)) cell.remove();
  view.grid.classList.toggle("many", fleets.length > 150);
  fleets.forEach((fleet, at) => {
    if (!view.cells.has(fleet.id)) view.cells.set(fleet.id, make("button", { type: "button", tabIndex: -1 }));
    const cell = view.cells.get(fleet.id);
    if (view.grid.children[at] !== cell) view.grid.insertBefore(cell, view.grid.children[at] ?? null);
    const words = `fleet ${fleet.id}: ${fleet.state}${fleet.state === "finished" ? "" : `, ${percent(fleet.done)}`}, ${counted(fleet.runs, "run")}, ${fleet.settings}`;
    if (cell.title === words) return;
    cell.dataset.id = fleet.id;
    cell.className = fleet.state.replace(" ", "-");
    cell.style.setProperty("--done", `${100 * fleet.done}%`);
    cell.title = words;
    cell.setAttribute("aria-label", words);
    cell.setAttribute("aria-pressed", String(chosen.get(view.name) === fleet.id));
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
  view.cells.get(chosen.get(view.name))?.setAttribute("aria-pressed", "false");
  id === null ? chosen.delete(view.name) : chosen.set(view.name, id);
  view.cells.get(id)?.setAttribute("aria-pressed", "true");
  showDetail(view);
  redraw(view);
}

function showDetail(view) {
  const fleet = view.study.fleets.find((each) => each.id === chosen.get(view.name));
  view.detail.hidden = !fleet;
  if (!fleet) return;
  const time = fleet.seconds ? `, ${inWords(fleet.seconds)}` : "";
  setText(view.detail, `fleet ${fleet.id}: ${fleet.state}, ${percent(fleet.done)}, ${counted(fleet.runs, "run")}` +
    `${fleet.diverged ? ` (${fleet.diverged} diverged)` : ""}; ${fleet.settings}${time}${fleet.where ? ` on ${fleet.where}` : ""}` +
    `${fleet.ended ? `, ended ${fleet.ended}` : ""}`);
}

const MOST_RUNS = 500; // of a table: more is what `tacit export` is for
function showRuns(view) {
  if (!view.runs.open) return;
  const lines = linesOf(view.study.fleets);
  const metric = METRICS[$("metric").value];
  const settings = AXES.filter(([key]) => new Set(lines.map((line) => line[key])).size > 1);
  const last = (line) => line.values[line.values.length - 1];
  const sorted = lines.map((line) => ({ ...line, best: metric.best(...line.values) })).sort((a, b) => metric.better(a.best, b.best));
  const row = (tag, texts) => make("tr", {}, ...texts.map((text) => make(tag, { textContent: text })));
  view.table.replaceChildren(
    make("table", {}, row("th", [...settings.map(([, words]) => words), "epochs", `best ${metric.words}`, `last ${metric.words}`, "fleet"]),
      ...sorted.slice(0, MOST_RUNS).map((line) => row("td", [...settings.map(([key]) => written(line[key])),
        written(line.epochs[line.values.length - 1]), metric.text(line.best), metric.text(last(line)), `${line.fleet.id} (${line.fleet.state})`]))),
    lines.length > MOST_RUNS ? make("p", { textContent: `… and ${lines.length - MOST_RUNS} more: tacit export writes all of them` }) : "");
}

// -- pictures --------------------------------------------------------------------------------------------------------
const waiting = new Set();
function redraw(view) {
  if (!waiting.size) requestAnimationFrame(() => {
    const drawn = [...waiting];
    waiting.clear();
    drawn.forEach(drawStudy);
  });
  waiting.add(view);
}

function drawStudy(view) {
  const metric = METRICS[$("metric").value];
  const legend = drawCurves(view.canvas, view.study.fleets, chosen.get(view.name), metric);
  view.colours.replaceChildren(...legend.map(([text, colour]) => {
    const swatch = make("i");
    if (colour) swatch.style.setProperty("--c", colour);
    return make("li", {}, colour ? swatch : "", text);
  }));
  const values = linesOf(view.study.fleets).map((line) => metric.best(...line.values));
  const best = values.length ? `; the best is ${metric.text(values.reduce((one, other) => metric.best(one, other)))}` : "";
  view.canvas.setAttribute("aria-label", `${metric.words} of the runs of ${view.study.name} against epochs${best}`);
}

function figureOf(figure, open) {
  for (const entry of figure.legend) colours.set(entry.class, entry.colours);
  const drawn = figure.panels.map((text) => document.adoptNode(new DOMParser().parseFromString(text, "text/html").body.firstElementChild));
  const legend = make("ul", { className: "legend" }, ...figure.legend.map((entry) =>
    make("li", { className: `${entry.class} ${entry.style}` }, make("i"), entry.label)));
  const more = make("details", { open }, make("summary", { textContent: "How it is judged, and what is drawn" }),
    ...[figure.seen, figure.rule, figure.caption].filter(Boolean).map((text) => make("p", { textContent: text })));
  return make("figure", {},
    make("h4", {}, `${figure.name}: ${figure.title} `, figure.outcome ? make("span", { className: `chip ${figure.outcome}`, textContent: figure.outcome }) : ""),
    figure.regime ? make("p", { className: "soft", textContent: figure.regime }) : "",
    figure.claim ? make("p", { textContent: figure.claim }) : "",
    figure.number ? make("p", { className: "number", textContent: figure.number }) : "",
    figure.advice ? make("p", { className: "soft", textContent: figure.advice }) : "",
    ...drawn, legend, more, make("figcaption", { textContent: counted(figure.runs, "run") }));
}

function showFigures(path, judged) {
  const view = folderView(path);
  const isOpen = new Set([...view.figures.children].filter((each) => each.querySelector("details").open).map((each) => each.dataset.key));
  view.figures.replaceChildren(...judged.figures.map((figure) => {
    const root = figureOf(figure, isOpen.has(figure.key));
    root.dataset.key = figure.key;
    return root;
  }));
  const judges = judged.figures.filter((each) => each.outcome);
  const tally = ["agrees", "disagrees", "undecided"].map((outcome) =>
    make("span", { className: `chip ${outcome}`, textContent: `${judges.filter((each) => each.outcome === outcome).length} ${outcome}` }));
  const link = make("a", { href: `#${view.verdicts.firstElementChild.id}`, textContent: `${counted(judged.figures.length, "figure")} on ${counted(judged.rows, "run")}` });
  view.tally.replaceChildren(...(judges.length ? ["Verdicts so far:", ...tally] : []), ...(judged.figures.length ? [link] : []));
  const absent = Object.entries(judged.absent);
  view.absent.replaceChildren(judged.problem ? make("p", { className: "problem", textContent: judged.problem }) : "");
  if (absent.length) view.absent.append(make("details", {}, make("summary", { textContent: `${counted(absent.length, "figure")} cannot be shown yet` }),
    make("ul", {}, ...absent.map(([id, reason]) => make("li", { textContent: `${id}: ${reason}` })))));
  view.verdicts.hidden = !judged.figures.length && !absent.length && !judged.problem;
}

function showColours() {
  const dark = document.documentElement.dataset.theme === "dark" ? 1 : 0;
  const text = [...colours].map(([name, pair]) => `.${CSS.escape(name)}{--c:${pair[dark]}}`).join("");
  if (showColours.text !== text) sheet.replaceSync((showColours.text = text));
}

// -- questions -------------------------------------------------------------------------------------------------------
function showState(answer) {
  folders = answer.folders;
  const names = new Set(folders.flatMap((folder) => [`folder ${folder.path}`, ...folder.studies.map((study) => `study ${folder.path} ${study.name}`)]));
  for (const [name, view] of views) if (!names.has(name)) view.root.remove(), views.delete(name);
  folders.forEach(showFolder);
  $("problem").replaceChildren(...marked(answer.problem));
  setText($("path"), folders.length === 1 && folders[0].path === answer.path ? "" : answer.path);
  const [runs, left] = [folders.reduce((sum, each) => sum + each.runs, 0), folders.reduce((sum, each) => sum + each.left, 0)];
  document.title = runs ? `${percent(1 - left / runs)} of ${counted(runs, "run")} · tacit watch` : "tacit watch";
}

function showAllFigures(answer) {
  for (const folder of folders) if (folder.path in answer) showFigures(folder.path, answer[folder.path]);
  showColours();
}

// A question is asked again and again; an answer that is the one before (304) changes nothing.
const progress = { address: () => `state?${$("metric").value}`, show: showState, pause: 1000, counter: "answered" };
const figures = { address: () => "figures", show: showAllFigures, pause: 2000, counter: "judged" };

async function ask(question) {
  clearTimeout(question.timer);
  const address = question.address();
  const slow = setTimeout(() => setText($("status"), "the folder answers slowly"), question === progress ? 10000 : 1e9);
  try {
    const headers = question.asked === address ? { "If-None-Match": question.tag } : {};
    const answer = await fetch(address, { cache: "no-store", headers });
    if (!answer.ok && answer.status !== 304) throw new Error(String(answer.status));
    now = Date.parse(answer.headers.get("Date")) / 1000;
    if (answer.ok) question.show(await answer.json());
    [question.asked, question.tag, question.failures] = [address, answer.headers.get("ETag"), 0];
    if (question === progress) showWritten(), setText($("status"), "up to date");
    window[question.counter]++;
  } catch (error) {
    question.failures = (question.failures ?? 0) + 1;
    window.lastError = String(error.stack ?? error);
    if (question.failures > 1) setText($("status"), "no answer: tacit watch was stopped, or cannot be reached; trying again");
  }
  clearTimeout(slow);
  question.timer = setTimeout(ask, document.hidden ? HIDDEN : Math.min(question.pause * (1 + question.failures), 10000), question);
}

function setTheme(name) {
  document.documentElement.dataset.theme = name;
  showColours();
  for (const view of views.values()) if (view.study) redraw(view);
}

const prefers = matchMedia("(prefers-color-scheme: dark)");
prefers.addEventListener("change", () => setTheme(prefers.matches ? "dark" : "light"));
$("theme").addEventListener("click", () => setTheme(document.documentElement.dataset.theme === "dark" ? "light" : "dark"));
document.addEventListener("visibilitychange", () => { if (!document.hidden) ask(progress); });
$("metric").addEventListener("change", () => ask(progress));
$("metric").append(...Object.entries(METRICS).map(([value, { words }]) => make("option", { value, textContent: words })));
setTheme(prefers.matches ? "dark" : "light");
ask(progress).then(() => ask(figures));
