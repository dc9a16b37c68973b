// Package plan computes how many bytes an inference engine stores for a token, a block and a request of a model, and
// what tiers a workload needs for that. It reads the config.json of the model, in the format of Hugging Face.
//
//	Parse  reads a config.json into a Model: what each layer stores
//	Make   computes a Plan of a Model and Options
//	Plan   is JSON as it stands, and Write prints it for people
//
// All of it is arithmetic without I/O. A layer stores one of four things:
//
//	full, swa, chunk   keys and values of each token:
//	                   key/value heads x (key size + value size) x bytes of an element
//	mla                one latent row of each token for all heads:
//	                   (kv_lora_rank + qk_rope_head_dim) x bytes of an element
//	mamba              a state that does not grow: a convolution's last inputs, and
//	                   the recurrent part, of Mamba 1 and 2 and of gated delta nets
//
// Layers of kind swa attend to a window of earlier tokens, layers of kind chunk to the chunk of the token. Earlier
// tokens are stored like the rest, but not needed again.
//
// The package guesses nothing. An unknown model type, a missing field and an impossible value are errors. The Plan
// lists each assumption.
package plan
