// Package bucket keeps objects in one bucket of S3, below a prefix, for the tier on object storage.
//
//	read    parts of Options.PartSize in parallel; the rest of an answer that ended early or stalled is asked for again, of
//	        the same version of the object. A read gives every byte or an error. Copy hands the bytes on as they come.
//	write   one PUT, which is atomic, with a CRC-32C that the server checks; a multipart upload above 1 GiB
//	repeat  what may end better, such as 429, 5xx, a lost connection, or silence for half of the deadline: with growing,
//	        random pauses, until the deadline
//	hedge   a read whose first byte takes longer than it did for 95 % of the last 128 is asked for a second time; the first
//	        answer wins. One in 20 at most.
//	give up after three calls in a row that no repetition helped: package cluster/breaker. A refusal, such as that of a
//	        missing object, is an answer.
//
// A range has no checksum in S3. Whoever reads compares one of their own.
//
// # The client
//
// The requests are made by minio-go, one try each. aws-sdk-go-v2 does the same work at the same cost. 16 MiB objects of a
// versitygw on the same two busy processors, 40 rounds of all four in turn, unsigned bodies with a CRC-32C of the caller:
//
//	                      wall p10   p50      processor of the client   memory    allocations
//	minio-go v7.4.1  PUT  191 ms     535 ms   19.2 ms                   53 KB     205
//	aws-sdk s3 1.114 PUT  145 ms     574 ms   19.1 ms                   74 KB     517
//	minio-go v7.4.1  GET   15 ms      37 ms    9.8 ms                   16 KB     200
//	aws-sdk s3 1.114 GET   17 ms      38 ms    8.6 ms                   32 KB     474
//
// minio-go has fewer allocations, adds 12 modules instead of 18, and knows which servers want the bucket in the host name.
// Its default, a body that is signed in chunks, takes 12,550 allocations and 1.3 to 2.5 times as long.
package bucket
