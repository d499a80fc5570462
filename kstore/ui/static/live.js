// Follows the stream of a page: writes changed values, and loads parts of the page again when their content changed.
"use strict";

(() => {
  const address = document.body.dataset.stream;
  const status = document.getElementById("live");
  if (!address || !status) return;

  let version = document.body.dataset.version;
  let wanted = null; // the version to show
  let loading = false;
  let pause = 1000; // the least time between two loads, in milliseconds

  function say(text) {
    if (status.textContent !== text) status.textContent = text; // a screen reader reads each change
  }

  function write(values) {
    for (const element of document.querySelectorAll("[data-live]")) {
      const text = values[element.dataset.live];
      if (text === undefined || element.textContent === text) continue;
      const isFirst = element.textContent === "\u2013"; // a dash: it was not known before
      element.textContent = text;
      if (isFirst) continue;
      element.classList.remove("changed");
      void element.offsetWidth; // starts the animation again
      element.classList.add("changed");
    }
  }

  // Puts a part of a page in the place of an old one, and keeps the focus and the scroll position.
  function replace(part, fresh) {
    const focused = part.contains(document.activeElement) ? document.activeElement : null;
    const all = (root) => [...root.querySelectorAll("a, button, summary, [tabindex]")];
    const at = focused ? all(part).indexOf(focused) : -1;
    const scrolled = [...part.querySelectorAll(".scroll")].map((each) => each.scrollLeft);
    part.replaceWith(fresh);
    fresh.querySelectorAll(".scroll").forEach((each, number) => { each.scrollLeft = scrolled[number] || 0; });
    const leads = focused && focused.getAttribute("href");
    const same = leads && all(fresh).find((each) => each.getAttribute("href") === leads);
    if (focused) (same || all(fresh)[at] || fresh).focus({ preventScroll: true });
  }

  // Replaces the parts of the page by those of a page that is loaded anew.
  async function load() {
    if (loading || wanted === version) return;
    loading = true;
    const began = performance.now();
    try {
      const answer = await fetch(location.href, { credentials: "same-origin" });
      if (answer.ok) {
        const page = new DOMParser().parseFromString(await answer.text(), "text/html");
        for (const part of document.querySelectorAll("[data-part]")) {
          const fresh = page.getElementById(part.id);
          if (fresh) replace(part, fresh);
        }
        version = page.body.dataset.version;
      }
    } catch {
      // The stream tells whether the server is there.
    }
    pause = Math.max(1000, 10 * (performance.now() - began));
    setTimeout(() => { loading = false; load(); }, pause);
  }

  function take(event) {
    const news = JSON.parse(event.data);
    document.body.classList.toggle("gone", Boolean(news.problem));
    say(news.problem ? `Not live: ${news.problem}` : "Live");
    write(news.values);
    wanted = news.version;
    load();
  }

  function follow() {
    const stream = new EventSource(address);
    stream.onmessage = take;
    stream.onerror = () => {
      document.body.classList.add("gone");
      const isOver = stream.readyState === EventSource.CLOSED;
      say(isOver ? "Not live: kstore ui was stopped, or too many pages are open" : "Not live: connecting again");
      if (isOver) setTimeout(follow, 5000);
    };
  }

  follow();
})();
