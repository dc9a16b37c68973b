// Package pace bounds the fetches of blocks: how long one may take, by what recent ones took (Speeds) and by how often its
// peer was silent (Silences); how many bytes are fetched at a time (Room); how a request ends early (Cut); and which copies
// and peers are not asked for a while (Shunned).
package pace
