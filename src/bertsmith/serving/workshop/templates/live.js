// Reloads the part of the page that changes while something runs; stops when nothing does, or when the page is hidden.
"use strict";
const INTERVAL = 2000; // milliseconds
const live = document.getElementById("live");
const lost = document.getElementById("lost");

async function reload() {
  if (!document.hidden) {
    try {
      const url = new URL(location.href);
      url.searchParams.set("part", "1");
      const response = await fetch(url, { cache: "no-store" });
      if (!response.ok) throw new Error(String(response.status));
      const text = await response.text();
      const open = [...live.querySelectorAll("details")].map((details) => details.open);
      live.innerHTML = text;
      live.querySelectorAll("details").forEach((details, index) => { details.open = Boolean(open[index]); });
      lost.hidden = true;
      if (response.headers.get("x-live") !== "1") return;
    } catch (error) {
      lost.hidden = false;
    }
  }
  setTimeout(reload, INTERVAL);
}

if (live && live.dataset.live === "1") setTimeout(reload, INTERVAL);
