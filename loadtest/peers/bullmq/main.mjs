// Adds jobs of 100 bytes and works them off, 200 at once, for so many seconds. Prints the number of jobs that were done.
import { Queue, Worker } from 'bullmq';

const [address, seconds] = process.argv.slice(2);
const [host, port] = address.split(':');
const connection = { host, port: Number(port), maxRetriesPerRequest: null };
const options = { removeOnComplete: true, removeOnFail: true };
const queue = new Queue('jobs', { connection, defaultJobOptions: options });
let done = 0;
const worker = new Worker('jobs', async () => { done += 1; }, { connection, concurrency: 200 });
await worker.waitUntilReady();
const end = Date.now() + Number(seconds) * 1000;
const payload = 'x'.repeat(100);
// No more are added than are worked off: both sides share a thread, and adding would take all of it.
let added = 0;
const add = async () => {
  while (Date.now() < end) {
    if (added - done < 1000) {
      added += 1;
      await queue.add('job', { payload }, { priority: 1 });
    } else {
      await new Promise((resume) => setTimeout(resume, 1));
    }
  }
};
await Promise.all(Array.from({ length: 200 }, add));
console.log(done);
process.exit(0);
