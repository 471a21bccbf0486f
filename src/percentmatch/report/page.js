"use strict";
const data = JSON.parse(document.getElementById("data").textContent);
const all = (selector, root = document) => [...root.querySelectorAll(selector)];
const make = (name, text, kind) => {
  const element = document.createElement(name);
  if (text !== undefined) element.textContent = text;
  if (kind) element.className = kind;
  return element;
};

// the class that figures, tables and images bring out; "" is a few examples
const chooser = document.getElementById("chooser");
const marked = new Map();
for (const element of all("[data-c]")) {
  const c = Number(element.dataset.c);
  if (!marked.has(c)) marked.set(c, []);
  marked.get(c).push(element);
}

function choose(value) {
  const chosen = value === "" ? data.examples : [Number(value)];
  for (const element of all("[data-c][data-hi]")) delete element.dataset.hi;
  chosen.forEach((c, place) => {
    for (const element of marked.get(c) || []) {
      element.dataset.hi = place;
      if (element.matches("svg .class")) element.parentNode.append(element); // drawn last: on top
    }
  });
  const key = document.getElementById("key");
  key.replaceChildren(...chosen.map((c, place) => {
    const item = make("li"), swatch = make("span", "", "swatch");
    swatch.dataset.hi = place;
    item.append(swatch, data.classes[c]);
    return item;
  }));
  for (const gallery of all(".gallery")) show(gallery, chosen[0]);
}

function pick(c) {
  chooser.value = String(c);
  choose(chooser.value);
}

// the images of a class
function show(gallery, c) {
  const run = data.galleries[gallery.dataset.run];
  gallery.parentNode.querySelector(".shown-class").textContent = data.classes[c];
  for (const list of all(".thumbs", gallery)) {
    const rows = ((run.classes[c] || {})[list.dataset.group]) || [];
    list.replaceChildren(...rows.map(([place, score]) => thumbnail(run.images[place], score, c)));
    if (!rows.length) list.append(make("li", "no such image", "none"));
  }
}

function thumbnail(image, score, c) {
  const names = (list) => list.map((each) => data.classes[each]).join(", ");
  const extra = image.predicted.filter((each) => !image.true.includes(each));
  const lost = image.true.filter((each) => !image.predicted.includes(each));
  const item = make("li"), picture = make("img");
  picture.src = data.pictures[image.picture];
  picture.alt = `${image.name}: ${names(image.true) || "no label"}`;
  picture.title = image.name;
  item.append(picture, make("span", score.toFixed(3), "score"), make("br"), names(image.true) || "no label");
  if (extra.length) item.append(make("br"), make("span", `+ ${names(extra)}`, "extra"));
  if (lost.length) item.append(make("br"), make("span", `− ${names(lost)}`, "lost"));
  return item;
}

// tables: sort by any column, a second press turns the order round
for (const table of all("table.sortable")) {
  const heads = all("thead th", table), body = table.tBodies[0];
  heads.forEach((head, column) => {
    head.querySelector("button").addEventListener("click", () => {
      const before = head.getAttribute("aria-sort");
      const descending = before ? before === "ascending" : column > 0;
      for (const each of heads) each.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", descending ? "descending" : "ascending");
      const key = (row) => {
        const cell = row.cells[column], text = cell.dataset.v ?? cell.textContent;
        return column === 0 ? text : text === "" ? null : Number.isNaN(Number(text)) ? text : Number(text);
      };
      const rows = [...body.rows].map((row) => [key(row), row]);
      rows.sort(([a], [b]) => {
        if (a === null || b === null) return (a === null) - (b === null); // what has no value comes last
        const order = typeof a === "string" || typeof b === "string" ? String(a).localeCompare(String(b)) : a - b;
        return descending ? -order : order;
      });
      body.append(...rows.map(([, row]) => row));
    });
  });
}

// the filter of a section's class tables
for (const box of all(".filter")) {
  const section = box.closest("section"), found = section.querySelector(".found");
  box.addEventListener("input", () => {
    const wanted = box.value.trim().toLowerCase();
    for (const table of all("tbody", section)) {
      const rows = [...table.rows];
      for (const row of rows) row.hidden = !row.cells[0].dataset.v.toLowerCase().includes(wanted);
      found.textContent = wanted ? `${rows.filter((row) => !row.hidden).length} of ${rows.length} classes` : "";
    }
  });
}

// thresholds by hand: a slider for each class, and the file of all thresholds
const exactly = (value) => (100 * value).toFixed(1);
function share(cell, hits, trials, of = (x) => x) { // with its 95% interval, Wilson's
  cell.replaceChildren(trials ? exactly(of(hits / trials)) : "–");
  cell.dataset.v = trials ? of(hits / trials) : "";
  if (!trials) return;
  const z = 1.959964, p = hits / trials, slack = z * z / trials;
  const half = z * Math.sqrt(p * (1 - p) / trials + slack / (4 * trials));
  const [low, high] = [-1, 1].map((side) => of(Math.min(1, Math.max(0, (p + slack / 2 + side * half) / (1 + slack)))));
  cell.append(make("small", `${exactly(low)} to ${exactly(high)}`));
}
for (const [key, run] of Object.entries(data.sliders)) {
  const sliders = all(`.slider[data-run="${key}"]`), link = document.querySelector(`.download[data-run="${key}"]`);
  const chosen = [...run.own];
  const write = () => {
    const thresholds = Object.fromEntries(run.names.map((name, n) => [name, chosen[n]]));
    link.href = `data:application/json,${encodeURIComponent(JSON.stringify({ thresholds }, null, 1))}`;
  };
  const rows = sliders.map((slider) => {
    const cells = [...slider.closest("tr").cells], position = Number(slider.dataset.position);
    const before = cells.slice(2).map((cell) => [cell, cell.innerHTML, cell.dataset.v]), start = slider.value;
    const { right, chosen: taken, positives } = run.classes[position];
    slider.disabled = false;
    slider.setAttribute("aria-valuetext", cells[2].textContent);
    slider.addEventListener("input", () => {
      const step = Number(slider.value), hits = right[step], threshold = run.grid[step];
      chosen[position] = threshold;
      cells[2].textContent = cells[2].dataset.v = threshold.toFixed(4);
      slider.setAttribute("aria-valuetext", cells[2].textContent);
      share(cells[3], hits, taken[step]);
      share(cells[4], hits, positives);
      share(cells[5], hits, taken[step] + positives - hits, (x) => 2 * x / (1 + x));
      if (chooser.value !== slider.dataset.class) pick(slider.dataset.class);
      write();
    });
    return () => {
      slider.value = start;
      chosen[position] = run.own[position];
      for (const [cell, content, value] of before) cell.innerHTML = content, cell.dataset.v = value;
      slider.setAttribute("aria-valuetext", cells[2].textContent);
    };
  });
  document.querySelector(`.reset[data-run="${key}"]`).addEventListener("click", () => {
    for (const restore of rows) restore();
    write();
  });
  link.closest(".tools").hidden = false;
  write();
}

// figures: the nearest point under the pointer
const tip = document.getElementById("tip");
const shapes = new WeakMap();
function points(group) {
  if (!shapes.has(group)) {
    const path = group.querySelector("path");
    const numbers = path ? path.getAttribute("d").match(/-?[\d.]+/g) || [] : [];
    const found = [];
    for (let n = 0; n + 1 < numbers.length; n += 2) found.push([Number(numbers[n]), Number(numbers[n + 1])]);
    if (!path) for (const dot of all("circle", group)) found.push([Number(dot.getAttribute("cx")), Number(dot.getAttribute("cy"))]);
    shapes.set(group, found);
  }
  return shapes.get(group);
}
function nearest(svg, event) {
  const box = svg.getBoundingClientRect(), scale = svg.viewBox.baseVal.width / box.width;
  const x = (event.clientX - box.left) * scale, y = (event.clientY - box.top) * scale;
  let best = null, least = 18 * 18;
  for (const group of all("g.class:not(.only:not([data-hi])), g.series", svg)) {
    for (const [px, py] of points(group)) {
      const far = (px - x) ** 2 + (py - y) ** 2 - (group.dataset.hi !== undefined ? 30 : 0);
      if (far < least) { least = far; best = { group, px, py }; }
    }
  }
  return best;
}
function read(scale, pixel) {
  const [low, high, start, end] = scale.split(" ").map(Number);
  const value = low + (pixel - start) / (end - start) * (high - low);
  return Math.abs(high - low) > 20 ? value.toFixed(Math.abs(high - low) > 200 ? 0 : 1) : Number(value.toPrecision(3)).toString();
}
for (const svg of all("svg.chart[data-x]")) {
  const labels = all("text.label", svg).map((each) => each.textContent);
  for (const title of all("g > title", svg)) title.parentNode.dataset.name = title.textContent, title.remove(); // the tip says more
  svg.addEventListener("pointermove", (event) => {
    const found = nearest(svg, event);
    tip.hidden = !found;
    if (!found) return;
    const { group, px, py } = found;
    tip.textContent = group.matches(".dot, .only") ? group.dataset.name
      : `${group.dataset.name}: ${labels[0]} ${read(svg.dataset.x, px)}, ${labels[1]} ${read(svg.dataset.y, py)}`;
    tip.style.left = `${Math.max(4, Math.min(event.clientX + 12, innerWidth - tip.offsetWidth - 8))}px`;
    tip.style.top = `${Math.max(4, event.clientY - tip.offsetHeight - 12)}px`;
  });
  svg.addEventListener("pointerleave", () => { tip.hidden = true; });
  svg.addEventListener("click", (event) => {
    const found = nearest(svg, event);
    if (found && found.group.dataset.c !== undefined) pick(found.group.dataset.c);
  });
}

if (chooser) {
  chooser.addEventListener("change", () => choose(chooser.value));
  for (const button of all("[data-pick]")) button.addEventListener("click", () => pick(button.dataset.pick));
  choose("");
}
function openTarget() { // a link to a run opens it
  const target = location.hash && document.getElementById(location.hash.slice(1));
  const box = target && target.closest("details");
  if (box) { box.open = true; target.scrollIntoView(); }
}
addEventListener("hashchange", openTarget);
openTarget();
let opened = [];
addEventListener("beforeprint", () => { opened = all("details:not([open])"); for (const each of opened) each.open = true; });
addEventListener("afterprint", () => { for (const each of opened) each.open = false; });
