"use strict";

// The buttons work without this too: then the whole page is loaded anew.

const verdict = document.getElementById("verdict");
const forms = document.querySelectorAll("form");
let playing = false;

function show(html) {
  const page = new DOMParser().parseFromString(html, "text/html");
  const state = page.getElementById("state");
  const news = page.getElementById("verdict");

  document.getElementById("state").replaceWith(state);

  // A screen reader reads what changes: the same once more would be read again.
  if (news.innerHTML !== verdict.innerHTML) {
    verdict.className = news.className;
    verdict.replaceChildren(...news.childNodes);
  }

  return state.dataset.state === "running";
}

function setPlaying(value) {
  playing = value;
  // Not "disabled": it would take the focus from whoever uses the keyboard.
  document.querySelectorAll("button").forEach((button) => button.setAttribute("aria-disabled", value));
}

async function play(url, method) {
  setPlaying(true);

  try {
    let response = await fetch(url, { method });

    while (response.ok && show(await response.text())) {
      await new Promise((resolve) => setTimeout(resolve, 200));
      response = await fetch(location.pathname);
    }

    if (!response.ok) throw new Error(response.status);
  } catch {
    verdict.className = "broken";
    verdict.textContent = "The shop does not answer as it should. Look at the terminal it runs in.";
  } finally {
    setPlaying(false);
  }
}

forms.forEach((form) =>
  form.addEventListener("submit", (event) => {
    event.preventDefault();

    if (!playing) {
      play(event.submitter.formAction, "POST").then(() => verdict.scrollIntoView({ block: "nearest" }));
    }
  })
);

if (document.getElementById("state").dataset.state === "running") play(location.pathname, "GET");
