// Package plan computes from the config.json of a model, as published in the format of
// Hugging Face, how many bytes an inference engine keeps of a token, a block and a request,
// and from these what tiers a workload needs.
//
//	Parse  reads a config.json into a Model: what each layer keeps
//	Make   computes a Plan of a Model and Options
//	Plan   is JSON as it stands, and Write prints it for people
//
// All of it is arithmetic without I/O. What a layer keeps is one of four:
//
//	full, swa, chunk   keys and values of each token:
//	                   key/value heads x (key size + value size) x bytes of an element
//	mla                one latent row of each token for all heads:
//	                   (kv_lora_rank + qk_rope_head_dim) x bytes of an element
//	mamba              a state that does not grow: a convolution's last inputs, and
//	                   the recurrent part, of Mamba 1 and 2 and of gated delta nets
//
// Layers of kind swa look back over a window, layers of kind chunk over the chunk that
// the token is in. What lies before is written like the rest, but not needed again.
//
// Nothing is guessed. A model type that is not known, a field that is missing, and a value
// that cannot be are errors; what is assumed is listed in the Plan.
package plan
