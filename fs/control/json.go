package control

import (
	"context"
	"encoding/json"
	"errors"
	"io"

	"github.com/kvfs/kvfs/fs/strict"
	"github.com/kvfs/kvfs/tiers/block"
)

// failure is the answer to a request that failed.
type failure struct {
	Error string `json:"error"`
	Field string `json:"field,omitempty"` // JSON Pointer to the faulty part of the request
}

// encodeAnswer returns the JSON of an answer, on one line.
func encodeAnswer(answer any) []byte {
	text, err := json.Marshal(answer)
	if err != nil {
		text = []byte(`{"error": "the answer cannot be encoded"}`) // a bug: answers are plain structs
	}
	return append(text, '\n')
}

// requestJSON makes a dialogue of a function that takes a request in JSON.
func requestJSON[Q, A any](do func(context.Context, Q) (A, error)) Dialogue {
	run := func(ctx context.Context, request []byte) any {
		var q Q
		if err := strict.Unmarshal(request, &q); err != nil {
			return refusal(err)
		}
		a, err := do(ctx, q)
		if err != nil {
			return refusal(err)
		}
		return a
	}
	return func(ctx context.Context, request []byte, answer io.Writer) {
		answer.Write(encodeAnswer(run(ctx, request))) // fails if the client is gone
	}
}

// StreamJSON makes a dialogue of a function that takes a request in JSON and writes an answer
// of any length. All members of the request may be left out. An error of do becomes the answer,
// or its last line. An error with a method Field() string, a JSON Pointer, names the faulty
// part of the request.
func StreamJSON[Q any](do func(ctx context.Context, q Q, answer io.Writer) error) Dialogue {
	return func(ctx context.Context, request []byte, answer io.Writer) {
		var q Q
		if len(request) > 0 {
			if err := strict.Unmarshal(request, &q); err != nil {
				answer.Write(encodeAnswer(refusal(err)))
				return
			}
		}
		if err := do(ctx, q, answer); err != nil {
			answer.Write(encodeAnswer(refusal(err))) // fails if the client is gone
		}
	}
}

// fieldError is an error that names the faulty part of a request.
type fieldError interface {
	error
	Field() string // JSON Pointer; empty: none in particular
}

// refusal is the answer to a request that failed with err.
func refusal(err error) failure {
	e := failure{Error: block.Shorten(err.Error(), strict.MaxText)}
	if at, ok := errors.AsType[fieldError](err); ok {
		e.Field = strict.Faulty(at.Field(), "").Part
	}
	return e
}
