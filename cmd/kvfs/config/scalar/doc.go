// Package scalar has the values of settings that are more than a number or a word: sizes, durations, and addresses.
// Each has one text form, and an error that says what is wrong with a text and what is wanted.
package scalar
