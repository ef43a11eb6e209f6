// Talks to the server: one running question per tab, whose events arrive as they happen.
const tab = crypto.randomUUID();
let running = null;

const post = (place, body, signal) => fetch(place, {
  method: "POST", headers: { "content-type": "application/json" }, body: JSON.stringify(body), signal,
});

const refusal = async (response) => {
  try { return (await response.json()).error; } catch { return `the server answered ${response.status}`; }
};

/** Ask a question; `on(event, data)` gets every event of it unless a later question begins first. */
export async function ask(kind, question, on) {
  running?.abort();
  const own = running = new AbortController();
  const tell = (event, data) => { if (running === own) on(event, data); };
  try {
    const response = await post(kind, { tab, ...question }, own.signal);
    if (!response.ok) return tell("refused", { message: await refusal(response) });
    const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
    let held = "";
    for (;;) {
      const { value, done } = await reader.read();
      if (done) break;
      const parts = (held + value).split("\n\n");
      held = parts.pop();
      for (const part of parts) {
        const [, event, data] = /^event: (\w+)\ndata: (.*)$/s.exec(part);
        tell(event, JSON.parse(data));
      }
    }
  } catch (error) {
    if (error.name !== "AbortError") tell("refused", { message: "certimap no longer answers; start it again" });
  } finally {
    tell("end", {});
  }
}

export const stop = () => post("stop", { tab });

/** Return the response of the server; throw its refusal. */
export async function fetched(place, body) {
  const response = await (body ? post(place, body) : fetch(place));
  if (!response.ok) throw new Error(await refusal(response));
  return response;
}

export const saved = (what) => fetched(what, { tab });
