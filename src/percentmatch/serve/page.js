"use strict";

const SHOWN = 10;  // classes at first
const $ = (id) => document.getElementById(id);
let model = null, running = null;

function make(kind, className, text) {
  const element = document.createElement(kind);
  element.className = className;
  if (text !== undefined) element.textContent = text;
  return element;
}

function percent(share) {
  if (share > 0 && share < 0.001) return "< 0.1 %";
  if (share < 1 && share > 0.999) return "> 99.9 %";
  return `${(100 * share).toFixed(1)} %`;
}

async function ask(path, options) {
  let answer, said;
  try {
    answer = await fetch(path, options);
    said = await answer.json();
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new Error("the server does not answer; is it still running?");
  }
  if (!answer.ok) throw new Error(said.error);
  return said;
}

function say(text, problem) {
  $("status").textContent = problem ? "" : text;
  $("status").hidden = Boolean(problem);
  $("problem").textContent = problem ? `${problem[0].toUpperCase()}${problem.slice(1)}.` : "";
  $("problem").hidden = !problem;
}

function clear() {
  for (const id of ["labels", "all"]) $(id).hidden = true;
}

function row(each) {
  const item = make("li", each.decided ? "yes" : "no");
  const bar = make("span", "bar"), fill = make("span", "fill");
  bar.setAttribute("aria-hidden", "true");
  fill.style.width = `${100 * each.probability}%`;
  bar.append(fill);
  if (each.threshold !== null) {
    const tick = make("span", "tick");
    tick.style.left = `${100 * Math.min(each.threshold, 1)}%`;
    bar.append(tick);
  }
  const value = make("span", "value", percent(each.probability));
  if (each.decided) {
    const mark = make("span", "mark", "✓ ");
    mark.setAttribute("aria-hidden", "true");
    value.prepend(mark);
  }
  value.append(make("span", "unseen", each.decided ? ", decided" : ", not decided"));
  item.append(make("span", "name", each.name), value, bar);
  return item;
}

function show(answer) {
  const found = answer.labels;
  say(`The model decides for ${found.length || "none"} of ${answer.classes.length} classes.`);
  $("labels").replaceChildren(...found.map((name) => make("li", "", name)));
  $("labels").hidden = !found.length;
  const rows = answer.classes.map(row), first = Math.max(SHOWN, found.length);
  rows.slice(first).forEach((each) => { each.hidden = true; });
  $("classes").replaceChildren(...rows);
  const ticks = answer.classes.some((each) => each.threshold !== null);
  $("key").replaceChildren(...(ticks ? [make("span", "tick sample"), "where a class begins to be decided for"] : []));
  $("more").hidden = rows.length <= first;
  $("more").textContent = `Show all ${rows.length} classes`;
  $("more").onclick = () => {
    rows.forEach((each) => { each.hidden = false; });
    $("more").hidden = true;
    rows[first].tabIndex = -1;
    rows[first].focus();
  };
  $("all").hidden = false;
}

async function look(file) {
  running?.abort();
  const mine = running = new AbortController();
  const named = file.name || "the image";
  URL.revokeObjectURL($("preview").src);
  $("preview").src = URL.createObjectURL(file);
  $("preview").alt = `The image ${named}`;
  $("preview").hidden = false;
  $("file").textContent = named;
  $("shown").hidden = false;
  $("invite").hidden = true;
  $("choose").labels[0].textContent = "Choose another";
  $("hint").firstChild.textContent = "or drop one, or paste it with ";
  $("answer").setAttribute("aria-busy", "true");
  say(`Looking at ${named} …`);
  try {
    if (model && file.size > model.max_bytes) {
      const most = (model.max_bytes / 2 ** 20).toLocaleString("en");
      throw new Error(`the file is larger than the ${most} MB allowed; choose a smaller one`);
    }
    show(await ask("/predict", {method: "POST", body: file, signal: mine.signal}));
  } catch (error) {
    if (mine.signal.aborted) return;
    clear();
    say("", error.message);
  }
  if (running === mine) $("answer").setAttribute("aria-busy", "false");
}

function take(files) {
  if (files.length) look(files[0]);
  else {
    clear();
    say("", "that is no file; choose, drop or paste an image file");
  }
}

for (const id of ["choose", "photo"]) {
  $(id).addEventListener("change", () => {
    if ($(id).files.length) look($(id).files[0]);
    $(id).value = "";  // the same file can be chosen again
  });
}
$("preview").addEventListener("error", () => {
  $("preview").hidden = true;
  $("file").textContent += " (the browser cannot show it)";
});
document.addEventListener("paste", (event) => take(event.clipboardData.files));
let depth = 0;
const cover = (change) => { depth = Math.max(0, change); $("over").hidden = !depth; };
document.addEventListener("dragenter", (event) => { event.preventDefault(); cover(depth + 1); });
document.addEventListener("dragleave", () => cover(depth - 1));
document.addEventListener("dragover", (event) => event.preventDefault());
document.addEventListener("drop", (event) => { event.preventDefault(); cover(0); take(event.dataTransfer.files); });

if (/Mac|iP/.test(navigator.platform)) $("hint").querySelector("kbd").textContent = "⌘";
say("They appear here once there is an image.");
ask("/health").then((about) => {
  model = about;
  const classes = about.classes === 1 ? "1 class" : `${about.classes} classes`;
  const task = about.task === "single-label" ? "one label an image" : "any number of labels an image";
  $("about").textContent = `Model “${about.model}”: ${classes}, ${task}`;
  document.title = `${about.model}: labels of an image`;
}).catch((error) => say("", error.message));
