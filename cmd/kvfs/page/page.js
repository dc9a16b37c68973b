"use strict";
// Shows /page.json, again every 2 s. All that it shows goes into the page as text, never as HTML.

const every = 2000;      // ms between two requests
const patience = 10000;  // ms that a request may take
const kept = 300;        // points of a chart: ten minutes
const stale = 5;         // answers with the same numbers after which they count as old
const store = "kvfs-token";

const $ = (id) => document.getElementById(id);
let token = "", paused = false, timer = 0, turn = 0; // of poll
let last = null, same = 0, good = 0;               // the last answer, how often it came again, when it came
const points = [];       // {hit, read, write}; hit is null if nothing was asked for

// make returns an element. Children are elements and texts.
function make(tag, className, ...children) {
  const e = document.createElement(tag);
  if (className) e.className = className;
  e.append(...children.map((c) => (c instanceof Node ? c : String(c))));
  return e;
}

// bytes returns a size in the largest binary unit.
function bytes(n) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB", "PiB"];
  let u = 0;
  while (n >= 1024 && u < units.length - 1) { n /= 1024; u++; }
  return (u ? n.toFixed(1) : Math.round(n)) + " " + units[u];
}

const count = (n) => (n || 0).toLocaleString("en");
const percent = (x) => (100 * x).toFixed(1) + " %";
const clock = (t) => new Date(t).toLocaleTimeString();

// span returns a time in words. s is in seconds.
function span(s) {
  for (const [unit, word] of [[86400, "d"], [3600, "h"], [60, "min"]]) if (s >= unit) return Math.floor(s / unit) + " " + word;
  return Math.floor(s) + " s";
}

// bar returns a bar that is filled to used of all, and pinned of it from the bottom.
function bar(name, used, all, pinned) {
  const share = (n) => (all > 0 ? Math.min(100, (100 * n) / all) : 0);
  const b = make("div", "bar", make("i"), make("i"));
  b.children[0].style.width = share(used) + "%";
  b.children[1].style.width = share(pinned || 0) + "%";
  b.setAttribute("role", "meter");
  b.setAttribute("aria-label", name);
  b.setAttribute("aria-valuemin", "0");
  b.setAttribute("aria-valuemax", "100");
  b.setAttribute("aria-valuenow", share(used).toFixed(1));
  return b;
}

// row is a bar with a name before it, a value after it, and a note below it.
function row(name, value, note, filled) {
  const r = make("div", "row", make("span", "", make("b", "", name), make("span", "", value)));
  if (filled) r.append(filled);
  if (note) r.append(make("div", "soft", note));
  return r;
}

// table shows rows below heads. A cell is a text or an element. Head "#x" is a column of numbers, "*x" one of texts of any length.
function table(id, heads, rows, none) {
  const at = $(id), scroll = at.querySelector(".scroll"), from = scroll ? [scroll.scrollLeft, scroll.scrollTop] : [0, 0];
  if (!rows.length) return at.replaceChildren(make("p", "soft", none));
  const form = (i) => ({ "#": "number", "*": "long" })[heads[i][0]] || "";
  const head = make("thead", "", make("tr", "", ...heads.map((h, i) => make("th", form(i), h.replace(/^[#*]/, "")))));
  const body = make("tbody", "", ...rows.map((r) => make("tr", "", ...r.map((c, i) => {
    const cell = make("td", form(i), c);
    cell.dataset.head = heads[i].replace(/^[#*]/, ""); // a narrow page has no line of heads
    return cell;
  }))));
  const box = scroll || make("div", "scroll"); // kept, with its focus
  box.tabIndex = 0;
  box.setAttribute("role", "region");
  box.setAttribute("aria-label", at.closest("section").querySelector("h2").textContent);
  box.replaceChildren(make("table", "", head, body));
  if (!scroll) at.replaceChildren(box);
  [box.scrollLeft, box.scrollTop] = from;
}

const word = (text, bad, warn) => make("span", bad.includes(text) ? "bad" : warn.includes(text) ? "warn" : "good", text || "-");

function showTiers(s) {
  $("tier-bars").replaceChildren(...s.tiers.map((t) => {
    const note = [t.state, t.reason, t.pinned_bytes ? bytes(t.pinned_bytes) + " pinned or open" : "", count(t.blocks) + " blocks"];
    const value = t.capacity_bytes ? bytes(t.used_bytes) + " of " + bytes(t.capacity_bytes) + ", " + percent(t.used_bytes / t.capacity_bytes) : bytes(t.used_bytes);
    const r = row(t.name, value, note.filter(Boolean).join(" · "), t.capacity_bytes && bar(t.name, t.used_bytes, t.capacity_bytes, t.pinned_bytes));
    r.dataset.tier = t.name;
    if (t.state !== "online") r.lastChild.className = t.state === "offline" ? "bad" : "warn";
    return r;
  }));
}

function showMembers(s) {
  const list = s.cluster ? s.cluster.members : [];
  $("cluster-part").hidden = $("members-part").hidden = !list.length;
  if (!list.length) return;
  const alive = list.filter((m) => m.state === "alive" || m.self);
  const all = alive.reduce((n, m) => n + m.total_bytes, 0), used = all - alive.reduce((n, m) => n + m.free_bytes, 0);
  const share = s.cluster.local_read_ratio;
  $("cluster-bar").replaceChildren(row(alive.length + " of " + list.length + " nodes alive", bytes(used) + " of " + bytes(all),
    "memory and SSD of all nodes · " + percent(share) + " of the blocks read here were on this node", bar("cluster", used, all)));
  table("member-rows", ["*Node", "State", "Used", "#Blocks", "Read over", "Feed", "#Fetched", "#Failures", "*Note"], list.map((m) => {
    const name = make("span", "", make("b", "", m.name), m.self ? " (this node)" : "", m.zone ? make("div", "soft", m.zone) : "", make("div", "soft", m.version));
    const taken = m.total_bytes - m.free_bytes;
    const room = make("div", "", bytes(taken) + " of " + bytes(m.total_bytes), bar(m.name, taken, m.total_bytes));
    const link = m.self ? "-" : make("span", "", word(m.path, [""], []), m.breaker && m.breaker !== "closed" ? make("div", "bad", "breaker " + m.breaker) : "");
    const notes = [m.reason, m.path_reason, m.missing && m.missing.length ? "lacks " + m.missing.join(", ") : "", m.last_error ? "last error: " + m.last_error : ""];
    return [name, word(m.state, ["failed", "refused"], ["left"]), room, count(m.blocks), link, m.self ? "-" : word(m.feed, [""], ["snapshot", "waiting"]),
      m.self ? "-" : bytes(m.fetched_bytes || 0), count(m.failures), notes.filter(Boolean).join("; ")];
  }), "");
}

// totals are the counters that rates are made of.
function totals(s) {
  const r = s.reads, tiers = Object.values(r.served_bytes_by_tier || {});
  return { hits: r.served_blocks, asks: r.served_blocks + r.failed_blocks + r.misses, read: tiers.reduce((a, b) => a + b, 0), write: s.counters.stored_bytes };
}

// line returns lines through points, of which top is at the top. The newest is at the right.
function line(points, top, className) {
  const wide = Math.max(points.length, 60);
  const at = points.map((p, i) => (p === null ? null : ((300 * (wide - points.length + i)) / (wide - 1)).toFixed(1) + "," + (79 - (78 * p) / top).toFixed(1)));
  const parts = [[]]; // a gap where there is no value
  for (const p of at) p === null ? parts.push([]) : parts[parts.length - 1].push(p);
  return parts.filter((p) => p.length).map((p) => {
    const l = document.createElementNS("http://www.w3.org/2000/svg", "polyline");
    l.setAttribute("points", p.length > 1 ? p.join(" ") : p[0] + " " + p[0]);
    l.setAttribute("class", className);
    return l;
  });
}

function showRates(now, was) {
  const s = now.status;
  if (was && was.status.pid === s.pid && now.time !== was.time) {
    const a = totals(was.status), b = totals(s), sec = Math.max((Date.parse(now.time) - Date.parse(was.time)) / 1000, 0.001), asks = b.asks - a.asks;
    points.push({ hit: asks > 0 ? (b.hits - a.hits) / asks : null, read: Math.max(0, b.read - a.read) / sec, write: Math.max(0, b.write - a.write) / sec });
    if (points.length > kept) points.shift();
  } else if (was && was.status.pid !== s.pid) {
    points.push({ hit: null, read: null, write: null }); // another daemon
  }
  const all = totals(s), newest = (key) => { const p = points.findLast((q) => q[key] !== null); return p ? p[key] : null; };
  const hit = newest("hit"), top = Math.max(1, ...points.map((p) => Math.max(p.read || 0, p.write || 0)));
  $("hits-text").replaceChildren(make("b", "first", "hit ratio "), hit === null ? "nothing asked for yet" : percent(hit),
    all.asks ? " · " + percent(all.hits / all.asks) + " since the start" : "");
  $("bytes-text").replaceChildren(make("b", "first", "read "), bytes(newest("read") || 0) + "/s · ", make("b", "second", "written "), bytes(newest("write") || 0) + "/s · top " + bytes(top) + "/s");
  $("hits").replaceChildren(...line(points.map((p) => p.hit), 1, "first"));
  $("bytes").replaceChildren(...line(points.map((p) => p.read), top, "first"), ...line(points.map((p) => p.write), top, "second"));
}

function showMisses(s) {
  const c = s.counters, rows = [["no tier has the name", c.lookup_misses], ["no room in memory", c.promotion_no_room_blocks],
    ["predicted to miss the deadline", c.deadline_predicted_misses], ["came after the deadline", c.deadline_exceeded_misses]];
  for (const t of s.secondaries || []) {
    rows.push([t.name + ": not there any more", t.promotion_absent_blocks], [t.name + ": wrong checksum", t.promotion_corrupt_blocks],
      [t.name + ": failed", t.promotion_failed_blocks], [t.name + ": took too long", t.promotion_timeouts]);
  }
  rows.push(["evicted when no other tier had a copy", c.lost_blocks]);
  table("miss-rows", ["*Reason", "#Since the start"], rows.filter((r) => r[1] > 0).map((r) => [r[0], count(r[1])]), "None since the start.");
}

// advice says what other sizes would bring: see "Buy memory or SSD?" in docs/operations.md. m and s are hit ratios of memory,
// and of memory and SSD, of half, the same, twice and four times the size.
function advice(m, s) {
  const much = 0.02, out = [], both = s || m;
  if (s && s[2] - s[1] > much) out.push("Twice the SSD would answer " + percent(s[2] - s[1]) + " more of the asks, and save computing.");
  if (m[2] - m[1] > much) out.push("Twice the memory would answer " + percent(m[2] - m[1]) + " more from memory" + (s ? "." : ", and save computing."));
  if (out.length) return out.join(" ");
  if (m[1] - m[0] <= much && both[1] - both[0] <= much) return s ? "Half of both would do." : "Half of the memory would do.";
  return "More of either would bring nothing now.";
}

function showSizes(now) {
  const m = now.memory, s = now.ssd;
  if (!m.ratios) { $("advice").textContent = ""; return table("size-rows", [], [], "Nothing was asked for yet."); }
  const ratio = (r, i) => make("span", "", percent(r[i]), bar("hit ratio", r[i], 1));
  table("size-rows", ["Size", "Hits in memory"].concat(s && s.ratios ? ["In memory or SSD"] : []), m.scales.map((x, i) =>
    [x === 1 ? "as now" : x + " times", ratio(m.ratios, i)].concat(s && s.ratios ? [ratio(s.ratios, i)] : [])), "");
  const say = now.advise ? advice(m.ratios, s && s.ratios) : "No advice yet: it needs a day, or as much evicted as memory holds and reads of what was evicted.";
  $("advice").textContent = say + " An estimate for LRU from " + count(m.asks) + " asks" + (m.asks < 1000 ? ", which are few: look again later." : ".");
}

function showGroups(s) {
  const list = (s.groups || []).slice().sort((a, b) => b.used_bytes - a.used_bytes), all = s.tiers[0].capacity_bytes;
  table("group-rows", ["*Group", "Memory", "#Quota", "#Block"], list.slice(0, 30).map((g) => [
    make("span", "", g.name || "(none)", g.pinned ? make("div", "soft", "pinned") : ""),
    make("div", "", bytes(g.used_bytes), bar(g.name, g.used_bytes, g.quota_bytes || all)),
    g.quota_bytes ? bytes(g.quota_bytes) : "-", g.block_bytes ? bytes(g.block_bytes) : "-"]), "No groups yet.");
  if (list.length > 30) $("group-rows").append(make("p", "soft", count(list.length - 30) + " more"));
}

function showEvictions(now) {
  table("rule-rows", ["Tier", "Rule", "#Blocks since the start"], (now.evictions || []).map((e) => [e.tier, e.rule, count(e.blocks)]), "None since the start.");
  if (now.recent) table("recent-rows", ["Latest", "Tier", "Rule", "#Size", "*Name"], now.recent.map((e) => [clock(e.time), e.tier, e.rule, bytes(e.bytes), e.name]), "");
  else $("recent-rows").replaceChildren();
}

// effective returns what became of settings that a machine can refuse, by path.
function effective(s) {
  const mounts = s.store ? s.store.mounts : [s.mount], of = (f) => [...new Set(mounts.map(f).filter(Boolean))].join(", ");
  const got = { "memory.size": [bytes(s.tiers[0].capacity_bytes), s.tiers[0].reason],
    "memory.passthrough": ["read: " + (of((m) => m.read_path) || "-") + ", write: " + (of((m) => m.write_path) || "-"), of((m) => m.path_reason)],
    "memory.keep": [s.memory.adoptable ? "the next daemon can adopt" : "a crash loses the blocks", s.memory.discarded] };
  const devices = (s.secondaries || []).flatMap((t) => (t.detail && t.detail.devices) || []);
  const engines = [...new Set(devices.map((d) => d.engine + (d.direct_io ? "" : ", not direct")))];
  if (engines.length) got["directio.engine"] = [engines.join("; "), devices.map((d) => d.reason).filter(Boolean).join("; ")];
  if (s.cluster) {
    const paths = [...new Set(s.cluster.members.filter((m) => !m.self && m.path).map((m) => m.path))];
    got["peer.transport"] = [paths.join(", ") || "no peer is read now", s.cluster.rdma && s.cluster.rdma.error];
    got["bind"] = [s.cluster.members.filter((m) => m.self).map((m) => m.gossip_addr).join(), s.cluster.warning];
  }
  return got;
}

function showSettings(now) {
  const got = effective(now.status);
  const rows = (now.settings || []).filter((x) => x.origin !== "default" || got[x.path]);
  table("setting-rows", ["*Setting", "*Requested", "*From", "*Effective", "*Why"], rows.map((x) =>
    [x.path, x.value, x.origin, got[x.path] ? got[x.path][0] : "as requested", (got[x.path] && got[x.path][1]) || ""]), "");
}

function show(now) {
  const s = now.status, where = s.store ? s.store.mounts.length + " mounts of " + s.store.socket : s.mount.dir;
  $("node").textContent = now.node || where;
  $("about").textContent = [where, "version " + s.version, "pid " + s.pid, "up " + span(s.uptime_seconds), "numbers of " + clock(now.time)].filter(Boolean).join(" · ");
  document.title = "kvfs " + (now.node || where);
  showTiers(s); showMembers(s); showRates(now, last); showMisses(s); showSizes(now); showGroups(s); showEvictions(now); showSettings(now);
  $("lines").replaceChildren(...(now.log || ["None since the start."]).map((l) => make("li", / ERROR /.test(l) ? "bad" : "", l)));
  same = last && last.time === now.time ? same + 1 : 0;
  last = now;
  $("main").hidden = $("nav").hidden = false;
  alarm(same < stale ? "" : "The daemon answers, and has collected no numbers since " + clock(now.time) + ".");
}

function alarm(text) {
  if ($("alarm").textContent !== text) $("alarm").textContent = text; // a screen reader reads each change
  $("alarm").hidden = !text;
}

function login(text) {
  alarm(text);
  $("login").hidden = false;
  $("main").hidden = $("nav").hidden = true;
  $("token").focus();
}

// ask returns the numbers, or a text that says why there are none.
async function ask() {
  try {
    const headers = { Authorization: "Bearer " + token };
    const reply = await fetch("page.json", { headers, cache: "no-store", credentials: "omit", redirect: "error", signal: AbortSignal.timeout(patience) });
    if (reply.ok) return await reply.json();
    if (reply.status === 401) return null;
    if (reply.status === 503) return "The daemon starts or stops. This page goes on when the daemon is ready.";
    return "The daemon refuses: " + (await reply.text()).slice(0, 200);
  } catch { // no connection, a connection that broke, or the time is over
    return "No answer from the daemon" + (good ? " since " + clock(good) + ": the numbers are old" : "") + ". This page tries again.";
  }
}

// poll asks once, and then again and again until another poll, a pause, or an answer that the token is wrong.
async function poll() {
  clearTimeout(timer);
  const mine = ++turn, got = await ask();
  if (mine !== turn) return;
  if (got === null) {
    sessionStorage.removeItem(store);
    return login("The daemon does not take this token.");
  }
  if (typeof got === "string") alarm(got);
  else {
    show(got);
    good = Date.now();
  }
  if (!paused) timer = setTimeout(poll, every);
}

function use(text) {
  token = text;
  sessionStorage.setItem(store, token);
  $("login").hidden = true;
  poll();
}

$("login").addEventListener("submit", (e) => {
  e.preventDefault();
  const text = $("token").value.trim();
  $("token").value = "";
  if (/^[!-~]+$/.test(text)) use(text); else login("A token has only printable characters.");
});
$("pause").addEventListener("click", () => {
  paused = !paused;
  $("pause").textContent = paused ? "Go on" : "Pause";
  $("pause").setAttribute("aria-pressed", String(paused));
  if (paused) clearTimeout(timer); else poll();
});

// A token after # stays in this browser: it is no part of a request. It leaves the address, which others may see.
const given = /^#token=([!-~]+)$/.exec(location.hash);
if (given) history.replaceState(null, "", "/");
const known = given ? given[1] : sessionStorage.getItem(store);
if (known) use(known); else login("");
