// Runs llama.cpp once: node engine.mjs REQUEST, where REQUEST is JSON.
//
//   modules  directory of node_modules
//   model    GGUF file
//   context  tokens that the context can hold
//   threads  of the evaluation
//   warm     whether to evaluate a token first, as a server has
//   flash    whether to use flash attention
//   op       "save": evaluate prompt, save the state to file
//            "restore": load the state from file
//   file     state file
//   prompt   tokens (save only)
//   next     token from which both continue, greedily
//   length   tokens to generate
//
// Prints one line of JSON: {tokens, probabilities, context, bytes, first_token_ms},
// or {error} when the engine refused the operation.
// Everything else goes to stderr.
import {join} from "node:path";
import {pathToFileURL} from "node:url";

const request = JSON.parse(process.argv[2]);

const index = join(request.modules, "node-llama-cpp", "dist", "index.js");
const {getLlama} = await import(pathToFileURL(index).href);

const llama = await getLlama({
    gpu: false,
    build: "never",
    skipDownload: true,
    progressLogs: false,
    maxThreads: request.threads,
    logLevel: "error",
    logger: (level, message) => process.stderr.write(`${level}: ${message}\n`)
});
const model = await llama.loadModel({
    modelPath: request.model,
    gpuLayers: 0,
    ignoreMemorySafetyChecks: true
});
const context = await model.createContext({
    contextSize: request.context,
    sequences: 1,
    flashAttention: request.flash,
    threads: request.threads,
    ignoreMemorySafetyChecks: true
});
const sequence = context.getSequence();

if (request.warm) {
    await sequence.evaluateWithoutGeneratingNewTokens([request.next]);
    await sequence.clearHistory();
}

let bytes = 0;
let error;
const begin = performance.now();
let elapsed; // until the prompt, or the state, is there
if (request.op === "save") {
    await sequence.evaluateWithoutGeneratingNewTokens(request.prompt);
    elapsed = performance.now() - begin;
    try {
        bytes = (await sequence.saveStateToFile(request.file)).fileSize;
    } catch (err) {
        error = String(err?.message ?? err);
    }
} else if (request.op === "restore") {
    try {
        await sequence.loadStateFromFile(request.file, {acceptRisk: true});
        elapsed = performance.now() - begin;
    } catch (err) {
        error = String(err?.message ?? err);
    }
} else
    throw new Error(`unknown op ${request.op}`);

if (error !== undefined)
    print({error});
else
    print({bytes, context: Array.from(sequence.contextTokens), ...await generate(elapsed)});

await llama.dispose();

// generate continues from request.next and returns each token that was chosen
// and how probable the model held it. elapsed is the time before it.
async function generate(elapsed) {
    const begin = performance.now();
    let firstToken;
    const tokens = [];
    const probabilities = [];
    const outputs = sequence.evaluateWithMetadata([request.next], {confidence: true}, {
        temperature: 0,
        yieldEogToken: true
    });
    for await (const {token, confidence} of outputs) {
        firstToken ??= elapsed + performance.now() - begin;
        tokens.push(token);
        probabilities.push(confidence);
        if (tokens.length === request.length)
            break;
    }
    return {tokens, probabilities, first_token_ms: firstToken};
}

function print(reply) {
    process.stdout.write(JSON.stringify(reply) + "\n");
}
