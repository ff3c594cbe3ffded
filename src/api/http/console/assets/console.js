// What the console adds to its pages where scripts run: ages that tick, numbers that follow the server, keys, a theme.
// Every page and action works without it.
(() => {
  "use strict";
  const root = document.documentElement;
  const saved = (key) => { try { return localStorage.getItem(key); } catch { return null; } };
  const save = (key, value) => { try { localStorage.setItem(key, value); } catch { /* a private window */ } };
  const theme = saved("tallystone-theme");
  if (theme) root.dataset.theme = theme;
  const toggleTheme = () => {
    const isDark = root.dataset.theme ? root.dataset.theme === "dark" : matchMedia("(prefers-color-scheme: dark)").matches;
    root.dataset.theme = isDark ? "light" : "dark";
    save("tallystone-theme", root.dataset.theme);
  };
  const themeButton = document.getElementById("theme");
  if (themeButton) { themeButton.hidden = false; themeButton.addEventListener("click", toggleTheme); }

  // Times are in UTC, for readers without scripts. Here they are in the zone of the reader, and in the same form.
  const clock = new Intl.DateTimeFormat("en-GB", { year: "numeric", month: "2-digit", day: "2-digit", hour: "2-digit",
    minute: "2-digit", second: "2-digit", hourCycle: "h23", timeZoneName: "short" });
  const local = (millis) => {
    const part = Object.fromEntries(clock.formatToParts(millis).map(({ type, value }) => [type, value]));
    return `${part.year}-${part.month}-${part.day} ${part.hour}:${part.minute}:${part.second} ${part.timeZoneName}`;
  };
  const localize = (scope) => {
    for (const one of scope.querySelectorAll("time")) {
      one.title = one.textContent;
      one.textContent = local(Date.parse(one.dateTime));
    }
  };
  localize(document);
  let ages = [...document.querySelectorAll("time + .ago")];

  // Ages tick by the server's clock.
  const chip = document.querySelector('[data-testid="age"]');
  let offset = chip ? Number(chip.dataset.serverTime) - Date.now() : 0;
  const words = (seconds) => seconds < 120 ? `${seconds} s` : seconds < 7200 ? `${Math.floor(seconds / 60)} min`
    : seconds < 172800 ? `${Math.floor(seconds / 3600)} h` : `${Math.floor(seconds / 86400)} days`;
  let isAway = chip && chip.dataset.ageState === "away";
  const tick = () => {
    for (const age of ages) {
      const seconds = Math.floor((Date.now() + offset - Date.parse(age.previousElementSibling.dateTime)) / 1000);
      age.textContent = seconds < 0 ? `in ${words(-seconds)}` : `${words(seconds)} ago`;
    }
    if (!chip) return;
    if (!chip.dataset.asOf) {
      chip.dataset.ageState = isAway ? "away" : "stale";
      chip.querySelector(".age-text").textContent = "–";
      return;
    }
    const seconds = Math.max(0, Math.floor((Date.now() + offset - Number(chip.dataset.asOf)) / 1000));
    chip.dataset.ageState = isAway ? "away" : seconds <= 5 ? "fresh" : seconds <= 60 ? "lagging" : "stale";
    chip.querySelector(".age-text").textContent = `as of ${words(seconds)} ago`;
  };
  setInterval(tick, 1000);

  const state = document.querySelector('[data-testid="live-state"]');
  const main = document.getElementById("content");
  const pause = document.getElementById("pause");
  let isPaused = saved("tallystone-paused") === "yes";
  const show = (name, text) => { if (state) { state.dataset.state = name; state.textContent = text; } };
  const showState = (name) => isPaused ? show("paused", "paused") : show(name, name === "live" ? "live" : "not live");
  let follow = () => {};
  const setPaused = (paused) => {
    isPaused = paused;
    save("tallystone-paused", paused ? "yes" : "no");
    if (pause) { pause.textContent = paused ? "Resume" : "Pause"; pause.setAttribute("aria-pressed", String(paused)); }
    showState("off");
    follow();
  };
  if (state && pause) {
    pause.hidden = false;
    pause.addEventListener("click", () => setPaused(!isPaused));
  }
  const put = (scope, values) => {
    const bad = (values.bad ?? "").split(" ");
    for (const [key, text] of Object.entries(values)) {
      const cell = scope.querySelector(`[data-live="${key}"]`);
      if (!cell) continue;
      if (cell.textContent !== text) cell.textContent = text;
      const fact = cell.closest(".facts > div");
      (fact ?? cell).classList.toggle(fact ? "bad" : "bad-text", bad.includes(key));
    }
  };
  const LEFT = "No longer on this page. Load it again.";
  const mark = (row, why) => { row.title = why; row.classList.toggle("left", why !== ""); };
  const forget = (row) => {
    for (const cell of row.querySelectorAll("[data-live]")) {
      cell.textContent = "–";
      cell.classList.remove("bad-text");
    }
  };
  // A part comes as the server renders it into pages. What did not change stays the same node, so that focus and clicks are
  // not lost: nodes with a key by their key, others by their place.
  const morph = (old, fresh) => {
    if (old.nodeType === Node.TEXT_NODE) { if (old.data !== fresh.data) old.data = fresh.data; return; }
    for (const { name } of [...old.attributes]) if (!fresh.hasAttribute(name)) old.removeAttribute(name);
    for (const { name, value } of fresh.attributes) if (old.getAttribute(name) !== value) old.setAttribute(name, value);
    morphChildren(old, fresh);
  };
  const keyOf = (node) => node.dataset?.key;
  const morphChildren = (old, fresh) => {
    const wanted = new Set([...fresh.children].map(keyOf));
    for (const child of [...old.children]) if (keyOf(child) && !wanted.has(keyOf(child))) child.remove();
    let at = old.firstChild;
    for (const child of [...fresh.childNodes]) {
      const isSame = (node) => node.nodeName === child.nodeName && keyOf(node) === keyOf(child);
      const same = keyOf(child) ? [...old.children].find(isSame) : at && isSame(at) ? at : null;
      if (same && same === at) at = at.nextSibling;
      else old.insertBefore(same ?? child, at);
      if (same) morph(same, child);
    }
    while (at) { const next = at.nextSibling; at.remove(); at = next; }
  };
  const putPart = (name, markup) => {
    const part = main.querySelector(`[data-part="${name}"]`);
    if (!part) return;
    const fresh = document.createElement("template");
    fresh.innerHTML = markup;
    localize(fresh.content);
    const focused = document.activeElement;
    morphChildren(part, fresh.content);
    // A row that moved has lost the focus.
    if (focused !== document.activeElement && part.contains(focused)) focused.focus({ preventScroll: true });
  };
  if (main && state) {
    const take = (event) => {
      const news = JSON.parse(event.data);
      offset = news.serverTime - Date.now();
      isAway = news.isAway;
      if (chip) { chip.dataset.asOf = news.asOf ?? ""; chip.dataset.serverTime = news.serverTime; tick(); }
      put(main, news.page);
      for (const [name, markup] of Object.entries(news.parts)) putPart(name, markup);
      ages = [...document.querySelectorAll("time + .ago")];
      tick();
      // Rows keep their places. Those that come to the page wait for the next load, and of those that left it no number is
      // known any more.
      for (const row of document.querySelectorAll("tr[data-queue]")) {
        const name = row.dataset.queue;
        const values = news.rows[name];
        if (values) { put(row, values); mark(row, ""); }
        else if (news.isWhole || news.gone.includes(name)) { forget(row); mark(row, LEFT); }
      }
      showState("live");
    };
    let source = null;
    let again = 0;
    // A page that is paused or that nobody sees holds no stream: browsers allow few connections to one server. A new stream
    // begins with all numbers.
    follow = () => {
      clearTimeout(again);
      if (source) source.close();
      source = null;
      if (document.hidden || isPaused) return;
      source = new EventSource(main.dataset.stream);
      source.addEventListener("numbers", take);
      source.addEventListener("open", () => showState("live"));
      source.addEventListener("error", () => {
        showState("away");
        // The browser tries again by itself, unless the server refused the stream.
        if (source.readyState === EventSource.CLOSED) again = setTimeout(follow, 5000);
      });
    };
    document.addEventListener("visibilitychange", follow);
    addEventListener("pagehide", () => { if (source) source.close(); });
    addEventListener("pageshow", (event) => { if (event.persisted) follow(); });
    setPaused(isPaused);
  }

  // Rows that are selected: how many, all of them with one box, and no button while there is none.
  const selection = document.querySelector("form.select");
  if (selection) {
    const boxes = [...selection.querySelectorAll('input[name="m"]')];
    const label = document.getElementById("select-all");
    const all = label.querySelector("input");
    const showSelected = () => {
      const count = boxes.filter((box) => box.checked).length;
      selection.querySelector(".selected").textContent = `${count} of ${boxes.length} selected`;
      all.checked = count === boxes.length;
      all.indeterminate = count > 0 && count < boxes.length;
      for (const button of selection.querySelectorAll("button")) button.disabled = count === 0;
    };
    all.addEventListener("change", () => { for (const box of boxes) box.checked = all.checked; });
    selection.addEventListener("change", showSelected);
    addEventListener("pageshow", showSelected);
    label.hidden = false;
    document.getElementById("select-link").hidden = true;
    showSelected();
  }

  // The numbers of a chart under the pointer, or at the keyboard: it is a slider over its points.
  for (const chart of document.querySelectorAll(".chart[data-times]")) {
    const plot = chart.querySelector(".plot");
    const times = chart.dataset.times.split(" ").map(Number);
    const lines = [...chart.querySelectorAll("[data-values]")]
      .map(({ dataset }) => ({ label: dataset.label, values: dataset.values.split("|") }));
    const last = times.length - 1;
    let at = last;
    const showPoint = (point) => {
      at = Math.min(last, Math.max(0, point));
      const values = lines.map(({ label, values }) => `${label} ${values[at] ?? "–"}`).join(", ");
      const text = `${local(times[at])}: ${values} ${chart.dataset.unit}`;
      chart.querySelector(".reading").textContent = text;
      chart.querySelector(".cursor").setAttribute("d", `M${((at + 0.5) * 1000 / times.length).toFixed(1)} 0V160`);
      plot.setAttribute("aria-valuenow", String(at));
      plot.setAttribute("aria-valuetext", text);
    };
    const hidePoint = () => {
      if (plot === document.activeElement) return;
      chart.querySelector(".reading").textContent = "";
      chart.querySelector(".cursor").setAttribute("d", "");
    };
    const label = { role: "slider", tabindex: "0", "aria-label": plot.dataset.label, "aria-valuemin": "0",
      "aria-valuemax": String(last), "aria-valuenow": String(last), "aria-valuetext": "arrow keys read the points" };
    for (const [name, value] of Object.entries(label)) plot.setAttribute(name, value);
    plot.addEventListener("pointermove", (event) => {
      const box = plot.getBoundingClientRect();
      showPoint(Math.floor((event.clientX - box.left) / box.width * times.length));
    });
    plot.addEventListener("pointerleave", hidePoint);
    plot.addEventListener("focus", () => showPoint(at));
    plot.addEventListener("blur", hidePoint);
    plot.addEventListener("keydown", (event) => {
      const to = { ArrowLeft: at - 1, ArrowDown: at - 1, ArrowRight: at + 1, ArrowUp: at + 1, Home: 0, End: last,
        PageUp: at + 10, PageDown: at - 10 }[event.key];
      if (to === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
      event.preventDefault();
      showPoint(to);
    });
  }

  // Keys: ? help, / filter, t theme, p pause, j and k rows, x selects a row, g and a letter for a page.
  let isGoing = false;
  // The folder of the console, which the script lies below, wherever the page is.
  const folder = new URL("../", document.currentScript.src);
  const places = { o: "./", c: "counters", e: "experiments", h: "health", a: "audit" };
  document.addEventListener("keydown", (event) => {
    const field = event.target.closest('input:not([type="checkbox"]), select, textarea');
    if (event.ctrlKey || event.metaKey || event.altKey) return;
    if (event.key === "Escape") { if (field) field.blur(); return; }
    if (field || saved("tallystone-keys") === "off") return;
    if (isGoing) { isGoing = false; if (places[event.key]) location.href = new URL(places[event.key], folder); return; }
    const links = [...document.querySelectorAll("tbody td:first-child a")];
    const rowOf = (node) => node.closest("tbody tr");
    const at = links.findIndex((one) => rowOf(one) === rowOf(document.activeElement));
    const keys = {
      "/": () => { const input = document.querySelector('.filter :is(input:not([type="hidden"]), select)'); if (input) { input.focus(); input.select?.(); } },
      "?": () => { const help = document.getElementById("keys"); if (help) { help.hidden = !help.hidden; help.scrollIntoView({ block: "nearest" }); } },
      t: toggleTheme,
      p: () => { if (pause) setPaused(!isPaused); },
      j: () => links[Math.min(at + 1, links.length - 1)]?.focus(),
      k: () => links[Math.max(at - 1, 0)]?.focus(),
      x: () => rowOf(document.activeElement)?.querySelector('input[name="m"]')?.click(),
      g: () => { isGoing = true; },
    };
    if (keys[event.key]) { event.preventDefault(); keys[event.key](); }
  });
})();
