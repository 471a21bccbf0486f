"use strict";

const SHOWN = 10;  // classes at first
const KEPT = 50;  // images
const AT_ONCE = 4;  // requests
const $ = (id) => document.getElementById(id);
const own = new Map();  // thresholds by class
let model = null, images = [], waiting = [], running = 0, chosen = null;

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

const threshold = (each) => own.get(each.name) ?? each.threshold;
const decided = (each) => own.has(each.name) ? each.probability >= own.get(each.name) : each.decided;
const labelsOf = (image) => image.answer.classes.filter(decided).map((each) => each.name);

function slider(each, update) {
  const input = make("input", "slider");
  Object.assign(input, {type: "range", min: 0, max: 1, step: 0.001});
  input.setAttribute("aria-label", `Threshold of ${each.name}`);
  input.addEventListener("input", () => {
    own.set(each.name, input.valueAsNumber);
    update();
    tell();
  });
  return input;
}

function row(each) {
  const item = make("li", ""), bar = make("span", "bar"), fill = make("span", "fill"), mark = make("span", "", "✓ ");
  const from = make("span", "from soft"), value = make("span", "value"), word = make("span", "unseen");
  fill.style.width = `${100 * each.probability}%`;
  fill.setAttribute("aria-hidden", "true");
  mark.setAttribute("aria-hidden", "true");
  const update = () => {
    const yes = decided(each), at = threshold(each);
    item.className = yes ? "yes" : "no";
    mark.hidden = !yes;
    word.textContent = yes ? ", decided" : ", not decided";
    if (at === null) return;
    from.textContent = `from ${percent(at)}`;
    input.value = at;
    input.setAttribute("aria-valuetext", percent(at));
  };
  const input = slider(each, update);
  value.append(mark, percent(each.probability), word);
  bar.append(fill, ...(each.threshold === null ? [] : [input]));
  item.append(make("span", "name", each.name), from, value, bar);
  item.update = update;
  update();
  return item;
}

function list(image) {
  const found = labelsOf(image).flatMap((name) => [", ", make("bdi", "", name)]);
  image.said.replaceChildren(...(found.length ? found.slice(1) : ["no label"]));
}

function tell() {  // what the thresholds decide
  images.filter((image) => image.answer).forEach(list);
  if (!chosen?.answer) return;
  const found = labelsOf(chosen), all = chosen.answer.classes.length;
  say(`The model decides for ${found.length || "none"} of ${all} classes${own.size ? " with your thresholds" : ""}.`);
  $("labels").replaceChildren(...found.map((name) => make("li", "", name)));
  $("labels").hidden = !found.length;
  $("reset").hidden = !own.size;
}

function show(answer) {
  const rows = answer.classes.map(row), first = Math.max(SHOWN, answer.labels.length);
  const thresholds = answer.classes.some((each) => each.threshold !== null);
  tell();
  rows.slice(first).forEach((each) => { each.hidden = true; });
  $("classes").replaceChildren(...rows);
  $("key").replaceChildren(...(thresholds ? [make("span", "thumb"), "where a class begins to be decided for: move it"] : []));
  $("moved").hidden = !thresholds;
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

function choose(image) {
  chosen = image;
  $("preview").src = image.url;
  $("preview").alt = `The image ${image.name}`;
  $("preview").hidden = false;
  $("file").textContent = image.name;
  $("shown").hidden = false;
  for (const each of images) each.button.setAttribute("aria-pressed", each === image);
  draw();
}

function draw() {
  $("answer").setAttribute("aria-busy", !chosen.answer && !chosen.problem);
  if (chosen.answer) show(chosen.answer);
  else if (chosen.problem) {
    clear();
    say("", chosen.problem);
  } else say(`Looking at ${chosen.name} …`);
}

async function look(image) {
  try {
    if (model && image.file.size > model.max_bytes) {
      const most = (model.max_bytes / 2 ** 20).toLocaleString("en");
      throw new Error(`the file is larger than the ${most} MB allowed; choose a smaller one`);
    }
    image.answer = await ask("/predict", {method: "POST", body: image.file});
    list(image);
  } catch (error) {
    image.problem = error.message;
    image.said.textContent = error.message;
  }
  if (image === chosen) draw();
}

async function run() {
  if (running === AT_ONCE) return;
  running += 1;
  while (waiting.length) await look(waiting.shift());
  running -= 1;
}

function add(file) {
  const image = {file, name: file.name || "the image", url: URL.createObjectURL(file)};
  const picture = make("img", "");
  picture.src = image.url;
  picture.alt = "";
  image.said = make("span", "", "…");
  image.button = make("button", "");
  image.button.type = "button";
  image.button.append(picture, make("span", "soft", image.name), image.said);
  image.button.addEventListener("click", () => choose(image));
  image.item = make("li", "");
  image.item.append(image.button);
  return image;
}

function take(files) {
  if (!files.length) {
    chosen = null;
    $("answer").setAttribute("aria-busy", "false");
    clear();
    say("", "that is no file; choose, drop or paste an image file");
    return;
  }
  const added = [...files].slice(-KEPT).map(add);
  images.push(...added);
  for (const image of images.splice(0, images.length - KEPT)) URL.revokeObjectURL(image.url);
  waiting = [...added, ...waiting].filter((image) => images.includes(image));
  $("strip").replaceChildren(...images.map((image) => image.item));
  $("strip").hidden = images.length === 1;
  $("invite").hidden = true;
  $("choose").labels[0].textContent = "Add images";
  $("hint").firstChild.textContent = "or drop or paste them with ";
  choose(added[0]);
  added.forEach(run);
}

for (const id of ["choose", "photo"]) {
  $(id).addEventListener("change", () => {
    if ($(id).files.length) take($(id).files);
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

$("save").addEventListener("click", () => {
  const thresholds = Object.fromEntries(chosen.answer.classes.map((each) => [each.name, threshold(each)]));
  URL.revokeObjectURL($("save").href);
  $("save").href = URL.createObjectURL(new Blob([JSON.stringify({thresholds}, null, 2)], {type: "application/json"}));
});
$("reset").addEventListener("click", () => {
  own.clear();
  for (const item of $("classes").children) item.update();
  tell();
});
if (/Mac|iP/.test(navigator.platform)) $("hint").querySelector("kbd").textContent = "⌘";
say("They appear here once there is an image.");
ask("/health").then((about) => {
  model = about;
  const classes = about.classes === 1 ? "1 class" : `${about.classes} classes`;
  const task = about.task === "single-label" ? "exactly one label per image" : "any number of labels per image";
  $("about").textContent = `Model “${about.model}”: ${classes}, ${task}`;
  document.title = `${about.model}: labels of images`;
}).catch((error) => say("", error.message));
