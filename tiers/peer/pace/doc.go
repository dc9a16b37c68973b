// Package pace bounds the fetches of blocks: how long one may take, by what recent ones took (Speeds) and by how often its
// peer was silent (Silences); how many bytes are fetched at a time (Room); and how a request ends early (Cut).
package pace
