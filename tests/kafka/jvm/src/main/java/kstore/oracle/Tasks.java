package kstore.oracle;

import org.apache.kafka.server.util.Scheduler;

import java.util.ArrayList;
import java.util.List;
import java.util.concurrent.Delayed;
import java.util.concurrent.ScheduledFuture;
import java.util.concurrent.TimeUnit;

/** Kafka's background tasks, run only when asked, on the caller's thread: earliest first, in order of scheduling on ties. */
final class Tasks implements Scheduler {
    private final Clock clock;
    private final List<Task> pending = new ArrayList<>();
    private final List<Throwable> failures = new ArrayList<>();
    private long scheduled;

    Tasks(Clock clock) {
        this.clock = clock;
    }

    /** Runs what is due, and what falls due by running it. */
    int runDue() {
        int ran = 0;
        while (true) {
            Task next = null;
            synchronized (pending) {
                for (Task task : pending) {
                    if (task.due <= clock.milliseconds() && (next == null || task.compareTo(next) < 0))
                        next = task;
                }
                if (next == null)
                    return ran;
                pending.remove(next);
                if (next.period > 0) {
                    next.due += next.period;
                    pending.add(next);
                }
            }
            ran++;
            try {
                next.work.run();
            } catch (Throwable e) {
                failures.add(e);
            }
        }
    }

    List<Throwable> takeFailures() {
        List<Throwable> taken = List.copyOf(failures);
        failures.clear();
        return taken;
    }

    List<Task> pending() {
        synchronized (pending) {
            return pending.stream().sorted().toList();
        }
    }

    @Override
    public void startup() {
    }

    @Override
    public void shutdown() {
        synchronized (pending) {
            pending.clear();
        }
    }

    @Override
    public ScheduledFuture<?> schedule(String name, Runnable work, long delayMs, long periodMs) {
        synchronized (pending) {
            Task task = new Task(name, work, clock.milliseconds() + delayMs, periodMs, scheduled++);
            pending.add(task);
            return task;
        }
    }

    @Override
    public void resizeThreadPool(int newSize) {
    }

    final class Task implements ScheduledFuture<Void> {
        final String name;
        final Runnable work;
        final long period;
        final long number;
        long due;

        Task(String name, Runnable work, long due, long period, long number) {
            this.name = name;
            this.work = work;
            this.due = due;
            this.period = period;
            this.number = number;
        }

        @Override
        public int compareTo(Delayed other) {
            Task that = (Task) other;
            return due != that.due ? Long.compare(due, that.due) : Long.compare(number, that.number);
        }

        @Override
        public long getDelay(TimeUnit unit) {
            return unit.convert(due - clock.milliseconds(), TimeUnit.MILLISECONDS);
        }

        @Override
        public boolean cancel(boolean mayInterruptIfRunning) {
            synchronized (pending) {
                return pending.remove(this);
            }
        }

        @Override
        public boolean isCancelled() {
            return false;
        }

        @Override
        public boolean isDone() {
            synchronized (pending) {
                return !pending.contains(this);
            }
        }

        @Override
        public Void get() {
            return null;
        }

        @Override
        public Void get(long timeout, TimeUnit unit) {
            return null;
        }
    }
}
