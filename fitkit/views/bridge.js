// What only the browser can do: clipboard, files, the address bar.
async function copyText(text, say, done = "Copied") {
  try {
    await navigator.clipboard.writeText(text);
    say(done);
  } catch {
    say("The browser did not allow copying: select the text and press Ctrl+C");
  }
}

function saveFile(name, type, text) {
  const url = URL.createObjectURL(new Blob([text], { type }));
  Object.assign(document.createElement("a"), { href: url, download: name }).click();
  setTimeout(() => URL.revokeObjectURL(url), 1000);
}

function openFile(accept, use) {
  const input = Object.assign(document.createElement("input"), { type: "file", accept });
  input.addEventListener("change", async () => input.files[0] && use(await input.files[0].slice(0, 1_000_000).text()));
  input.click();
}

// What Voilà itself reads from the address stays in it.
const OURS = ["theme", "template"];

function addressQuery(query) {
  const kept = [...new URLSearchParams(location.search)].filter(([key]) => OURS.includes(key));
  return [query, new URLSearchParams(kept).toString()].filter(Boolean).join("&");
}

function writeAddress(query) {
  const text = addressQuery(query);
  history.replaceState(null, "", location.pathname + (text && "?" + text) + location.hash);
}

function otherTheme() {
  const dark = document.body.dataset.jpThemeLight === "false";
  const params = new URLSearchParams(location.search);
  params.set("theme", dark ? "light" : "dark");
  location.search = params.toString();
}
