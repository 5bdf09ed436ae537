// The sections of the page. `state` is what the reader has chosen; every section draws itself from it.

const data = JSON.parse(document.getElementById("results").textContent);
const state = { run: data.runs[0], seed: 0, on: new Set(), scheme: "", gainOf: "", layer: "", alpha: 0, sort: { column: 0, down: false } };
const SCHEMES = {
  separate: "every network pruned on its own, nothing shared",
  mtz: "all networks zipped into one, everything shared",
  pam: "neurons regrouped into exclusive and shared ones before pruning",
};
const FACTS = { peak_gib: "peak memory, GiB" };
const AGAIN = "Run the experiment again with this version of pamerge to record it.";

const body = (section) => document.getElementById(`${section}-body`);
const show = (section, ...content) => replace(body(section), content);
// New content; numbers that the reader has unfolded stay unfolded.
function replace(place, content) {
  const unfolded = place.querySelector("details[open]") !== null;
  place.replaceChildren(...content.flat(Infinity).filter(Boolean));
  for (const details of place.querySelectorAll("details")) details.open = unfolded;
}
const missing = (text) => el("p", { class: "missing" }, text);
const result = () => state.run.seeds[state.seed];
const seedText = () => (state.run.seeds.length > 1 ? `, seed ${result().seed}` : "");
const severalSeeds = () => state.run.seeds.length > 1;
const schemeKind = (name) => [state.run.main, ...state.run.schemes.filter((other) => other !== state.run.main)].indexOf(name);
const schemeColour = (name) => `var(--scheme-${schemeKind(name) % 6})`;
const taskColour = (index) => `var(--task-${index % data.colours})`;
const taskIndices = (group) => { const tasks = new Set(group.split("+")); return state.run.tasks.flatMap((task, i) => (tasks.has(task) ? [i] : [])); };
const chosenIndices = () => state.run.tasks.flatMap((task, i) => (state.on.has(task) ? [i] : []));
const chosenCombination = () => state.run.combinations.find(({ tasks }) => tasks.join() === chosenIndices().join());
const isOn = (group) => taskIndices(group).some((index) => state.on.has(state.run.tasks[index]));
const inWords = (tasks) => (tasks.length < 2 ? tasks.join("") : `${tasks.slice(0, -1).join(", ")} and ${tasks[tasks.length - 1]}`);
// Long names may break after + and .
const breakable = (name) => name.split(/(?<=[+.])/).flatMap((part, i) => (i ? [el("wbr"), part] : [part]));
const plain = (value) => String(Number(value.toPrecision(3)));
const sum = (values) => values.reduce((total, value) => total + value, 0);

// A neuron fills the lanes of the tasks that it serves.
function lanes(indices) {
  const count = state.run.tasks.length;
  const stops = state.run.tasks.map((_, i) => {
    const colour = indices.includes(i) ? taskColour(i) : "transparent";
    return `${colour} ${(100 * i) / count}% ${(100 * (i + 1)) / count}%`;
  });
  return `linear-gradient(${stops.join(", ")})`;
}
const swatch = (indices) => el("span", { class: "swatch", "aria-hidden": "true", style: { backgroundImage: lanes(indices) } });
const bySize = ([one], [other]) => {
  const [a, b] = [taskIndices(one), taskIndices(other)];
  return a.length - b.length || a.join().localeCompare(b.join());
};
function groupBar(groups, lit) {
  const entries = Object.entries(groups).filter(([, count]) => count > 0).sort(bySize);
  const told = entries.map(([group, count]) => `${group} ${count}${lit && !lit(group) ? " (off)" : ""}`).join(", ");
  return el("div", { class: "bar", role: "img", "aria-label": told || "no neurons" }, entries.map(([group, count]) =>
    el("span", { class: "segment" + (lit && !lit(group) ? " off" : ""), "data-group": group, title: `${group}: ${count}`, style: { flexGrow: count, backgroundImage: lanes(taskIndices(group)) } })));
}
const taskLegend = (extra) => el("ul", { class: "legend" }, state.run.tasks.map((task, i) => el("li", {}, swatch([i]), task)), extra);

// -- the top --------------------------------------------------------------------------------------------------------

function drawTop() {
  const { run } = state;
  document.getElementById("title").textContent = run.experiment;
  const budget = known(run.budget) ? ` until a task would lose more than ${run.isShare ? `${plain(100 * run.budget)} percentage point${run.budget === 0.01 ? "" : "s"}` : plain(run.budget)} of its metric` : "";
  const seeds = severalSeeds() ? ` Numbers are means over ${run.seeds.length} seeds ± their standard deviation; details are of one seed.` : "";
  document.getElementById("lede").textContent =
    `${run.tasks.length} networks (${run.network}), for ${inWords(run.tasks)}, merged into one and pruned (${run.pruner})${budget}.${seeds}`;
  const choices = [];
  if (data.runs.length > 1)
    choices.push(choice("run", "Experiment and pruner", data.runs.map((one) => `${one.experiment}, ${one.network}, ${one.pruner}`), data.runs.indexOf(run), (index) => start(data.runs[index])));
  if (severalSeeds())
    choices.push(choice("seed", "Seed, for the details", run.seeds.map((one) => String(one.seed)), state.seed, (index) => { state.seed = index; drawDetails(); }));
  document.getElementById("choices").replaceChildren(...choices);
}
function choice(id, label, options, selected, onPick) {
  const select = el("select", { id, onchange: () => onPick(select.selectedIndex) }, options.map((text, i) => el("option", { selected: i === selected }, text)));
  return el("div", {}, el("label", { class: "label", for: id }, label), select);
}

// -- tasks ----------------------------------------------------------------------------------------------------------

function buildTasks() {
  const { run } = state;
  const toggles = run.tasks.map((task, i) => {
    const box = el("input", { type: "checkbox", checked: true, "data-task": task, onchange: () => { state.on[box.checked ? "add" : "delete"](task); drawSubset(); drawPath(); } });
    return el("label", { class: "chip", style: { borderLeftColor: taskColour(i) } }, box, el("span", {}, task));
  });
  const rows = run.schemes.map((scheme) => {
    const radio = el("input", { type: "radio", name: "scheme", value: scheme, checked: scheme === state.scheme, onchange: () => { state.scheme = scheme; drawSubset(); drawInformation(); } });
    return el("label", { title: SCHEMES[scheme] }, radio, el("span", {}, scheme), el("span", { class: "track" }, el("span", { class: "cost", style: { display: "block" } })),
      el("span", { class: "number", "data-cost": scheme }), el("span", { class: "number", "data-metric": scheme }));
  });
  const explained = run.schemes.filter((scheme) => SCHEMES[scheme]).map((scheme) => `${scheme}: ${SCHEMES[scheme]}`).join("; ");
  show("tasks",
    el("div", { class: "upper" },
      el("div", {}, el("fieldset", { id: "toggles" }, el("legend", {}, "Tasks"), el("div", { class: "chips" }, toggles)),
        el("div", { class: "figures", id: "chosen", role: "status" })),
      el("fieldset", { class: "schemes" }, el("legend", {}, `Scheme, with cost and test metric of these tasks${severalSeeds() ? " over all seeds" : ""}`), rows,
        explained && el("p", { class: "note", style: { fontSize: "0.875rem", margin: "0.5rem 0 0" } }, `${explained}.`))),
    el("div", { class: "block", id: "network" }));
}

function drawSubset() {
  const { run } = state, combination = chosenCombination(), name = combination && combination.name;
  const scheme = result().schemes[state.scheme];
  const tasks = chosenIndices().map((i) => run.tasks[i]);
  const cost = !tasks.length ? 0 : name ? scheme.flops[name] : null;
  const metric = tasks.length ? mean(tasks.map((task) => scheme.metric[task])) : null;
  const { original_flops: originals, reference } = result();
  const originalCost = originals && tasks.length ? sum(tasks.map((task) => originals[task])) : null;
  const before = reference && tasks.length ? mean(tasks.map((task) => reference[task])) : null;
  document.getElementById("chosen").replaceChildren(
    el("div", { class: "figure" }, el("span", { class: "what" }, `Cost of one input${seedText()}`),
      number(cost, tasks.length ? flopsText(cost) : "nothing runs", { class: "value", id: "chosen-flops" }),
      known(originalCost) && known(cost) ? el("span", { class: "aside" }, `originals: ${flopsText(originalCost)}, ${digits(originalCost / cost)} times as much`) : null),
    el("div", { class: "figure" }, el("span", { class: "what" }, `Test metric${tasks.length > 1 ? ", mean of the tasks" : ""}${seedText()}`),
      number(metric, metricText(metric, run.isShare), { class: "value", id: "chosen-metric" }),
      known(before) ? el("span", { class: "aside" }, `originals: ${metricText(before, run.isShare)}`) : null));
  const most = name ? Math.max(...run.schemes.map((one) => run.flops[one][name][0])) : 1;
  for (const row of body("tasks").querySelectorAll(".schemes label")) {
    const one = row.querySelector("input").value, [costCell, metricCell] = row.querySelectorAll(".number");
    row.querySelector(".cost").style.width = name ? `${(100 * run.flops[one][name][0]) / most}%` : "0";
    costCell.replaceChildren(name ? number(run.flops[one][name][0], costText(run.flops[one][name], unitFor(most))) : "–");
    metricCell.replaceChildren(name ? number(run.metric[one][name][0], shareText(run.metric[one][name])) : "–");
  }
  drawLayers(scheme);
}
const costText = (pair, unit) => spreadText(pair, (value) => digits(value / unit[0]), (value) => digits(value / unit[0], 2)) + ` ${unit[1]}FLOPs`;
const shareText = (pair) => state.run.isShare
  ? spreadText(pair, (value) => (known(value) ? (100 * value).toFixed(2) : "–"), (value) => (100 * value).toFixed(2)) + " %"
  : spreadText(pair, (value) => digits(value, 4), (value) => digits(value, 2));

function drawLayers(scheme) {
  const place = document.getElementById("network");
  const title = el("h3", {}, `Layers of ${state.scheme}${seedText()}`);
  const { groups, layer_flops: costs = {}, layers } = scheme;
  if (!groups) {
    place.replaceChildren(title, missing(`The result does not hold the groups of ${state.scheme}’s layers. ${AGAIN}`));
    return;
  }
  const rows = (layers || inOrderOf(Object.keys(groups), Object.keys(costs))).map((layer) => {
    const sizes = groups[layer] || {}, all = sum(Object.values(sizes));
    const running = sum(Object.entries(sizes).map(([group, count]) => (isOn(group) ? count : 0)));
    const cost = sum(Object.entries(costs[layer] || {}).map(([group, flops]) => (isOn(group) ? flops : 0)));
    const neurons = layer in groups ? [number(running, String(running)), ` of ${all} neurons`] : [];
    return el("li", { "data-layer": layer }, el("span", { class: "name" }, breakable(layer)), layer in groups ? groupBar(sizes, isOn) : null,
      el("span", { class: "tally" }, neurons, layer in costs ? [neurons.length ? ", " : "", number(cost, cost ? flopsText(cost) : "0 FLOPs", { class: "layer-flops" })] : null));
  });
  const sets = [...new Set(Object.values(groups).flatMap((sizes) => Object.keys(sizes)))].map((group) => [group]).sort(bySize).map(([group]) => group);
  const table = plainTable("Neurons of each group", ["layer", ...sets], Object.entries(groups).map(([layer, sizes]) => [layer, ...sets.map((group) => String(sizes[group] || 0))]));
  replace(place, [title,
    el("p", { class: "note", style: { margin: "0 0 0.75rem" } }, "A bar shows a layer’s neurons by the tasks that they serve: a lane for each task, filled where neurons serve it. Pale neurons do not run."),
    taskLegend(), el("ol", { class: "layers" }, rows), inNumbers(table)]);
}
// Two lists with names in common as one, in an order that fits both.
function inOrderOf(junctions, layers) {
  const order = [], rest = [...layers];
  junctions.forEach((junction, i) => {
    const next = junctions.slice(i).find((name) => rest.includes(name));
    while (next !== undefined && rest.length && rest[0] !== next) order.push(rest.shift());
    if (rest[0] === junction) rest.shift();
    order.push(junction);
  });
  return [...order, ...rest.filter((layer) => !order.includes(layer))];
}

// -- the pruning path -----------------------------------------------------------------------------------------------

function drawPath() {
  const { run } = state, combination = chosenCombination();
  const tasks = chosenIndices().map((i) => run.tasks[i]);
  if (!tasks.length) return show("path", missing("No task is on; switch one on above."));
  const name = combination && combination.name;
  const points = (scheme) => (scheme.path || []).filter((step) => name in step.flops)
    .map((step) => { const y = mean(tasks.map((task) => step.metrics[task])); return [step.flops[name], y, `${flopsText(step.flops[name])}, ${metricText(y, run.isShare)}`]; })
    .filter(([x, y]) => known(x) && known(y));
  const series = run.schemes.map((one) => {
    const scheme = result().schemes[one], { validation } = scheme;
    const y = validation && mean(tasks.map((task) => validation[task]));
    const others = run.seeds.filter((other) => other !== result()).map((other) => points(other.schemes[one])).filter((path) => path.length);
    return { name: one, kind: schemeKind(one), colour: schemeColour(one), points: points(scheme), others,
      ring: known(y) && known(scheme.flops[name]) ? [scheme.flops[name], y, `kept: ${flopsText(scheme.flops[name])}, ${metricText(y, run.isShare)}`] : null };
  }).filter((one) => one.points.length);
  if (!series.length) return show("path", missing(`The result does not hold the pruning path of these tasks. ${AGAIN}`));
  const width = Math.max(280, body("path").clientWidth), unit = unitFor(Math.max(...series.flatMap((one) => one.points.map(([x]) => x))));
  const told = series.map((one) => `${one.name}: from ${one.points[0][2]} to ${(one.ring || one.points[one.points.length - 1])[2]}`).join("; ");
  const chart = lineChart({
    width, height: width < 560 ? 300 : 380, series, label: `Validation metric against FLOPs of ${inWords(tasks)}. ${told}.`,
    xTitle: `${unit[1]}FLOPs of ${inWords(tasks)}`, yTitle: `validation metric${tasks.length > 1 ? ", mean of the tasks" : ""}`,
    xText: (x) => String(Number((x / unit[0]).toPrecision(4))), yText: (y) => (run.isShare ? `${Number((100 * y).toFixed(2))} %` : String(Number(y.toPrecision(4)))),
  });
  const steps = Math.max(...series.map((one) => one.points.length));
  const rows = Array.from({ length: steps }, (_, i) => [String(i), ...series.map((one) => (one.points[i] ? one.points[i][2] : "–"))]);
  show("path", seriesLegend(series, true), chart, severalSeeds() ? el("p", { class: "note", style: { margin: "0.5rem 0 0" } }, `Strong lines: seed ${result().seed}; pale lines: the other seeds.`) : null,
    inNumbers(plainTable("Pruning path", ["step", ...series.map((one) => one.name)], rows)));
}

// -- gains ----------------------------------------------------------------------------------------------------------

function drawGains() {
  const { run } = state;
  if (run.schemes.length < 2) return show("gains", missing("The results hold one scheme only, so there is nothing to compare."));
  const gains = run.gains[state.gainOf], baselines = Object.keys(gains);
  const series = baselines.map((name) => ({ name: `over ${name}`, kind: schemeKind(name), colour: schemeColour(name) }));
  const values = Object.values(gains).flatMap((one) => Object.values(one.each).flatMap(([value, deviation]) => [value - (deviation || 0), value + (deviation || 0)]));
  const times = (value) => `${digits(value)}×`;
  const plot = dotPlot({
    label: `Gain of ${state.gainOf} for each combination. ${baselines.map((name) => `Over ${name}: ${times(gains[name].average[0])} on average, at most ${times(gains[name].peak[0])}`).join("; ")}.`,
    rows: run.combinations.map(({ name, tasks }) => ({ label: [swatch(tasks), el("span", {}, breakable(name))], values: Object.fromEntries(baselines.map((one) => [`over ${one}`, gains[one].each[name]])) })),
    series, base: 1, low: Math.min(1, ...values) > 0.5 ? Math.min(0.9, ...values) : 0, high: Math.max(1.1, ...values) * 1.02, text: (value) => `${Number(value.toPrecision(3))}×`,
  });
  const write = (pair) => spreadText(pair, digits, (value) => digits(value, 2)) + "×";
  const averages = plainTable("Average and peak gain", [`gain of ${state.gainOf}`, "average", "peak"], baselines.map((name) => [`over ${name}`, number(gains[name].average[0], write(gains[name].average)), number(gains[name].peak[0], write(gains[name].peak))]));
  const picker = choice("gain-of", "Gain of", run.schemes, run.schemes.indexOf(state.gainOf), (index) => { state.gainOf = run.schemes[index]; drawGains(); document.getElementById("gain-of").focus(); });
  const table = plainTable("Gain for each combination", ["tasks", ...baselines.map((name) => `over ${name}`)],
    run.combinations.map(({ name }) => [el("span", {}, breakable(name)), ...baselines.map((one) => number(gains[one].each[name][0], write(gains[one].each[name])))]));
  show("gains", picker, el("div", { class: "block", style: { marginTop: "1rem" } }, averages), el("div", { class: "block" }, seriesLegend(series), plot), inNumbers(table));
}

// -- sharing --------------------------------------------------------------------------------------------------------

function drawSharing() {
  const { run } = state;
  const schemes = run.schemes.filter((name) => Object.keys(run.sharing[name]).length);
  if (!schemes.length) return show("sharing", missing(`The results do not hold the sharing ratio of each layer. ${AGAIN}`));
  const series = schemes.map((name) => ({ name, kind: schemeKind(name), colour: schemeColour(name) }));
  const layers = schemes.map((name) => Object.keys(run.sharing[name])).reduce((all, names) => inOrderOf(all, names));
  const percent = (value) => `${Number((100 * value).toFixed(0))} %`;
  const told = schemes.map((name) => `${name}: ${percent(mean(Object.values(run.sharing[name]).map(([value]) => value)))} on average`).join("; ");
  const plot = dotPlot({
    label: `Sharing ratio of each layer. ${told}.`, series, low: 0, high: 1, text: percent,
    rows: layers.map((layer) => ({ label: [el("span", {}, breakable(layer))], values: Object.fromEntries(schemes.map((name) => [name, run.sharing[name][layer]])) })),
  });
  const write = (pair) => (pair ? spreadText(pair, (value) => (100 * value).toFixed(1), (value) => (100 * value).toFixed(1)) + " %" : "–");
  show("sharing", seriesLegend(series), plot, inNumbers(plainTable("Sharing ratio", ["layer", ...schemes], layers.map((layer) => [layer, ...schemes.map((name) => write(run.sharing[name][layer]))]))));
}

// -- information ----------------------------------------------------------------------------------------------------

const alphaText = (alpha) => (alpha < 0 ? "below 0" : plain(alpha));

function informed() {
  const has = (name) => { const { information } = result().schemes[name]; return information && Object.keys(information.layers || {}).length; };
  return [state.scheme, ...state.run.schemes].find(has);
}
function drawInformation() {
  const name = informed();
  if (!name) return show("information", missing(`The results do not hold how much information neurons have. ${AGAIN}`));
  const { alphas, layers } = result().schemes[name].information, names = Object.keys(layers);
  if (!names.includes(state.layer)) state.layer = names[0];
  const used = Math.max(0, alphas.indexOf(layers[state.layer].alpha));
  state.alpha = used;
  const picker = choice("layer", "Layer", names, names.indexOf(state.layer), (index) => { state.layer = names[index]; drawAlpha(); });
  const slider = el("input", { type: "range", id: "alpha", min: 0, max: alphas.length - 1, step: 1, oninput: () => { state.alpha = Number(slider.value); drawAlpha(); } });
  slider.value = used;
  const back = el("button", { type: "button", onclick: () => { state.alpha = Math.max(0, alphas.indexOf(layers[state.layer].alpha)); slider.value = state.alpha; drawAlpha(); } }, "The α that was used");
  show("information",
    el("div", { class: "slider" }, el("label", { for: "alpha", class: "label", style: { margin: 0 } }, `α, how much exclusive neurons of ${name}${seedText()} may say about other tasks`), slider, back, el("output", { id: "alpha-text", for: "alpha" })),
    el("div", { class: "block" }, el("h3", {}, "Groups that this α gives"), el("div", { id: "alpha-groups" })),
    el("div", { class: "block" }, el("h3", {}, "Information against iteration"), picker, el("div", { class: "panels", id: "traces" })));
  drawAlpha();
}
function drawAlpha() {
  const { run } = state, { alphas, layers } = result().schemes[informed()].information;
  const alpha = alphas[state.alpha], several = run.tasks.length > 2;
  const usedSomewhere = Object.values(layers).some((layer) => layer.alpha === alpha);
  const groups = Object.entries(layers).filter(([, layer]) => layer.exclusive).map(([name, layer]) => [name, layer, groupsAt(layer, state.alpha, alpha)]);
  const words = `α = ${alphaText(alpha)}`;
  document.getElementById("alpha").setAttribute("aria-valuetext", words);
  document.getElementById("alpha-text").textContent = words +
    (alpha < 0 ? ": everything is shared." : usedSomewhere ? ": the value that was used; the bars show what merging gave." : several ? ": what would become exclusive to one task; the rest is shared by two or more." : ".");
  const rows = groups.map(([name, layer, { exclusive, shared, dropped, merged }]) => {
    const single = Object.entries(exclusive).filter(([, count]) => count).map(([task, count]) => `${task} ${count}`);
    const told = [...single, `shared ${shared}`, ...(dropped ? [`dropped ${dropped}`] : [])].join(", ");
    const tasks = Object.keys(layer.traces), together = tasks.length > 2 ? null : { [tasks.join("+")]: shared };
    const bar = groupBar(merged || { ...exclusive, ...together });
    if (!merged && !together && shared) bar.append(el("span", { class: "segment rest", title: `shared: ${shared}`, style: { flexGrow: shared } }));
    if (!merged) bar.setAttribute("aria-label", told);
    return el("li", { "data-layer": name, "data-shared": shared, "data-exclusive": JSON.stringify(exclusive) }, el("span", { class: "name" }, breakable(name)), bar,
      el("span", { class: "tally" }, `${sum(Object.values(exclusive))} exclusive, ${shared} shared`));
  });
  document.getElementById("alpha-groups").replaceChildren(
    groups.length ? taskLegend(several ? el("li", {}, el("span", { class: "swatch rest", "aria-hidden": "true" }), "two or more tasks") : null)
      : missing("The groups of another α are not known for streams that were tied."),
    el("ol", { class: "layers" }, rows));
  drawTraces(layers[state.layer], alpha);
}
// At the α that was used: the groups after merging, with all levels. At another α: the first level.
function groupsAt(layer, position, alpha) {
  if (alpha === layer.alpha) {
    const own = Object.fromEntries(Object.keys(layer.traces).map((task) => [task, layer.merged[task] || 0]));
    return { exclusive: own, shared: sum(Object.values(layer.merged)) - sum(Object.values(own)), dropped: 0, merged: layer.merged };
  }
  const exclusive = Object.fromEntries(Object.entries(layer.exclusive).map(([task, counts]) => [task, counts[position]]));
  const dropped = layer.dropped ? layer.dropped[position] : 0;
  return { exclusive, dropped, shared: sum(Object.values(layer.origins)) - sum(Object.values(exclusive)) - dropped };
}
function drawTraces(layer, alpha) {
  const place = document.getElementById("traces"), narrow = place.clientWidth < 560;
  const columns = Math.max(1, Math.min(Object.keys(layer.traces).length, Math.floor((place.clientWidth + 24) / 264)));
  const width = Math.max(220, Math.floor((place.clientWidth - 24 * (columns - 1)) / columns));
  place.replaceChildren(...state.run.tasks.filter((task) => task in layer.traces).map((task) => {
    const trace = layer.traces[task];
    const claimed = layer.claimed[task][state.alpha], all = trace.taken[trace.taken.length - 1], level = Math.max(0, alpha) * trace.total;
    const colour = taskColour(state.run.tasks.indexOf(task));
    const told = `The first ${claimed} of ${all} neurons say at most ${digits(level)} of ${digits(trace.total)} bits.`;
    return el("div", {}, el("h4", {}, `Exclusive to ${task}?`), el("p", {}, told), lineChart({
      width, height: narrow ? 200 : 210, label: `Information about the other tasks’ labels against neurons taken for ${task}. ${told}`, fromZero: true, level, within: claimed,
      series: [{ kind: 0, colour, plain: true, points: trace.taken.map((taken, i) => [taken, trace.bits[i]]) }],
      xTitle: "neurons taken", yTitle: "bits about the other tasks", xText: String, yText: (y) => String(Number(y.toPrecision(3))),
    }));
  }));
}

// -- every combination ----------------------------------------------------------------------------------------------

function drawCombinations() {
  const { run } = state, unit = unitFor(Math.max(...run.schemes.flatMap((name) => run.combinations.map((one) => run.flops[name][one.name][0]))));
  const columns = [...run.schemes.map((scheme) => ({ scheme, kind: "metric" })), ...run.schemes.map((scheme) => ({ scheme, kind: "flops" }))];
  const value = (combination, index) => (index === 0 ? run.combinations.indexOf(combination) : run[columns[index - 1].kind][columns[index - 1].scheme][combination.name][0]);
  const { column, down } = state.sort;
  const order = [...run.combinations].sort((one, other) => (value(one, column) - value(other, column)) * (down ? -1 : 1));
  const head = (text, index, more = {}) => el("th", { scope: "col", "aria-sort": index === column ? (down ? "descending" : "ascending") : "none", ...more },
    el("button", { type: "button", "data-column": index, onclick: () => {
      state.sort = { column: index, down: index === column ? !down : false };
      drawCombinations();
      body("combinations").querySelector(`[data-column="${index}"]`).focus();
    } }, text));
  const cheapest = ({ name }) => Math.min(...run.schemes.map((scheme) => run.flops[scheme][name][0]));
  const rows = order.map((combination) => el("tr", { "data-combination": combination.name },
    el("th", { scope: "row" }, el("span", { style: { display: "flex", alignItems: "center" } }, swatch(combination.tasks), el("span", {}, breakable(combination.name)))),
    columns.map(({ scheme, kind }) => {
      const pair = run[kind][scheme][combination.name];
      const text = kind === "metric" ? shareText(pair) : spreadText(pair, (x) => digits(x / unit[0]), (x) => digits(x / unit[0], 2));
      return el("td", { class: kind === "flops" && pair[0] === cheapest(combination) ? "best" : null }, number(pair[0], text));
    })));
  const table = el("table", {}, el("caption", { class: "unseen" }, "Metric and FLOPs of every combination of tasks; the buttons in the head sort"),
    el("thead", {},
      el("tr", {}, el("td", {}), el("th", { scope: "colgroup", colspan: run.schemes.length }, "test metric"), el("th", { scope: "colgroup", colspan: run.schemes.length }, `${unit[1]}FLOPs`)),
      el("tr", {}, head("tasks", 0), columns.map(({ scheme, kind }, i) => head([el("span", { class: "unseen" }, kind === "metric" ? "metric of " : "FLOPs of "), scheme], i + 1)))),
    el("tbody", {}, rows));
  show("combinations", el("div", { class: "wide" }, scrolling("Table of every combination", table)));
}

// -- effort and environment -----------------------------------------------------------------------------------------

function drawEffort() {
  const { run } = state, { schemes, environment, reference, original_flops: originals } = result();
  const duration = (seconds) => (!known(seconds) ? "–" : seconds < 120 ? `${digits(seconds)} s` : seconds < 7200 ? `${digits(seconds / 60)} min` : `${digits(seconds / 3600)} h`);
  const alphaOf = ({ alpha }) => (known(alpha) ? alphaText(alpha) : alpha && typeof alpha === "object" ? "one for each layer" : "–");
  const efforts = plainTable(`Effort${seedText()}`, ["scheme", "task-batches", "time", "α", "pruning stopped because"], run.schemes.map((name) => {
    const scheme = schemes[name];
    return [name, known(scheme.task_batches) ? scheme.task_batches.toLocaleString("en") : "–", duration(scheme.seconds), alphaOf(scheme), scheme.stopped || "–"];
  }));
  const originalRows = reference ? plainTable(`Original networks${seedText()}`, ["task", "test metric", "FLOPs"], run.tasks.map((task) => [task, metricText(reference[task], run.isShare), originals ? flopsText(originals[task]) : "–"])) : null;
  const facts = Object.entries(environment || {}).map(([name, value]) => [el("dt", {}, FACTS[name] || name.replaceAll("_", " ")), el("dd", {}, known(value) && !Number.isInteger(value) ? digits(value) : typeof value === "object" ? JSON.stringify(value) : String(value))]);
  show("effort", efforts,
    originalRows && el("div", { class: "block" }, el("h3", {}, "Original networks"), originalRows),
    el("div", { class: "block" }, el("h3", {}, "Environment"), facts.length ? el("dl", {}, facts) : missing("The result does not say where it was made.")));
}

// -- all together ---------------------------------------------------------------------------------------------------

function drawDetails() {
  drawSubset();
  drawPath();
  drawInformation();
  drawEffort();
}
function start(run) {
  Object.assign(state, { run, seed: 0, on: new Set(run.tasks), scheme: run.main, gainOf: run.main, layer: "", sort: { column: 0, down: false } });
  drawTop();
  buildTasks();
  drawGains();
  drawSharing();
  drawCombinations();
  drawDetails();
}
start(state.run);

let width = document.body.clientWidth;
new ResizeObserver(() => {
  if (document.body.clientWidth === width) return;
  width = document.body.clientWidth;
  drawPath();
  drawGains();
  drawSharing();
  if (informed()) drawAlpha();
}).observe(document.body);
